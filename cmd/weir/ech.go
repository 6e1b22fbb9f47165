package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/tls/policy"
)

func newECHCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "ech PUBLIC_NAME",
		Short: "Create a key for Encrypted Client Hello and print its DNS record",
		Long: `Ech creates a key for Encrypted Client Hello (ECH, RFC 9849), with which clients
encrypt the host name that they request. The network sees PUBLIC_NAME instead: a
host that weir terminates and has a certificate for. Add the file, in the format
of RFC 9934, to ech.keys. An existing file is never overwritten.

Publish the printed DNS record for each host to hide, with its name instead of
HOST. docs/tls.md explains how to rotate keys.`,
		Example: `  weir ech cover.example.org -o /etc/weir/ech-2026-11.pem`,
		Args:    arguments(1, 1, "write one public name: weir ech PUBLIC_NAME"),
		RunE:    func(c *cobra.Command, args []string) error { return makeECH(c, args[0], path) },
	}
	c.Flags().StringVarP(&path, "output", "o", "ech.pem", "write the key to `FILE`, which must not exist; - prints it")
	return c
}

// makeECH writes to standard output only the text to publish, unless the key is to go
// there as well.
func makeECH(c *cobra.Command, publicName, path string) error {
	file, list, err := policy.NewECH(publicName)
	if err != nil {
		return err
	}
	out := c.OutOrStdout()
	if path == "-" {
		_, err := out.Write(file)
		return err
	}
	if err := writeSecret(path, file); err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString(list)
	_, err = fmt.Fprintf(out, "The key is in %s. Add it behind the others, and in front once every weir has it:\n\n  ech:\n    keys: [%s]\n\n"+
		"The ECHConfigList in base64:\n\n  %s\n\nThe DNS record of a host that is to be hidden, once every weir has the key:\n\n"+
		"  HOST. 300 IN HTTPS 1 . ech=\"%s\"\n", path, path, text, text)
	return err
}

// writeSecret writes a new file that only its owner can read.
func writeSecret(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot write the key: %s exists, and clients may still use what is in it; name another file with -o", path)
	}
	if err != nil {
		return fmt.Errorf("cannot write the key: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(path) // remove the incomplete key
		return fmt.Errorf("cannot write the key: %w", err)
	}
	return nil
}
