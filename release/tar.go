package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is a file in an archive.
type entry struct {
	name string // relative to the root of the archive, with slashes
	mode int64
	data []byte
}

// tarOf returns a tar archive of the files, sorted, with the folders of each file before
// it. Everything in it belongs to root and has the same time.
func tarOf(prefix string, files []entry, at time.Time) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	seen := map[string]bool{".": true}
	for _, f := range files {
		for _, folder := range foldersAbove(f.name) {
			if seen[folder] {
				continue
			}
			seen[folder] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: prefix + folder + "/", Mode: 0o755, ModTime: at, Format: tar.FormatUSTAR}); err != nil {
				return nil, err
			}
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: prefix + f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// foldersAbove returns the folders that contain name, outermost first.
func foldersAbove(name string) (all []string) {
	for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
		all = append(all, folder)
	}
	slices.Reverse(all)
	return all
}

// compress returns data in gzip format, without a name and a time.
func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(data); err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// packed returns a compressed tar archive.
func packed(prefix string, files []entry, at time.Time) ([]byte, error) {
	data, err := tarOf(prefix, files, at)
	if err != nil {
		return nil, err
	}
	return compress(data)
}
