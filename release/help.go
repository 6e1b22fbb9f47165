package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// completions are the files that shells read, by the name of the shell.
var completions = []struct{ shell, file string }{
	{"bash", "usr/share/bash-completion/completions/weir"},
	{"fish", "usr/share/fish/vendor_completions.d/weir.fish"},
	{"zsh", "usr/share/zsh/vendor-completions/_weir"},
}

// helpFiles returns the manual pages and the completions of a package. A weir for this machine writes them.
func (b *builder) helpFiles(ctx context.Context) ([]entry, error) {
	if b.help != nil {
		return b.help, nil
	}
	host, err := b.binary(ctx, weir, target{runtime.GOOS, runtime.GOARCH})
	if err != nil {
		return nil, err
	}
	program, err := filepath.Abs(filepath.Join(b.scratch, "weir"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(program, host.data, 0o755); err != nil {
		return nil, err
	}
	b.help, err = writtenBy(ctx, program, filepath.Join(b.scratch, "man"))
	return b.help, err
}

// writtenBy returns the manual pages and the completions that a weir writes. folder is for the pages.
func writtenBy(ctx context.Context, program, folder string) (files []entry, err error) {
	if _, err := outputOf(ctx, program, "man", filepath.Join(folder, "man1")); err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(folder, "man[15]", "*"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err == nil {
			text, err = compress(text)
		}
		if err != nil {
			return nil, err
		}
		section := filepath.Base(filepath.Dir(page))
		files = append(files, entry{"usr/share/man/" + section + "/" + filepath.Base(page) + ".gz", 0o644, text})
	}
	for _, c := range completions {
		text, err := outputOf(ctx, program, "completion", c.shell)
		if err != nil {
			return nil, err
		}
		files = append(files, entry{c.file, 0o644, text})
	}
	return files, nil
}

// outputOf runs weir and returns its output.
func outputOf(ctx context.Context, program string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err == nil {
		return out, nil
	}
	command := "weir " + strings.Join(args, " ")
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s failed: %w: %s", command, err, failed.Stderr)
	}
	return nil, fmt.Errorf("cannot run %s: %w", command, err)
}
