package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	b.help, err = writtenBy(ctx, program, filepath.Join(b.scratch, "man1"))
	return b.help, err
}

// writtenBy returns what a weir writes about itself. It writes the manual pages into folder.
func writtenBy(ctx context.Context, program, folder string) (files []entry, err error) {
	if out, err := exec.CommandContext(ctx, program, "man", folder).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("weir man: %w: %s", err, out)
	}
	pages, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(folder, page.Name()))
		if err == nil {
			text, err = compress(text)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, entry{"usr/share/man/man1/" + page.Name() + ".gz", 0o644, text})
	}
	for _, c := range completions {
		text, err := exec.CommandContext(ctx, program, "completion", c.shell).Output()
		if err != nil {
			return nil, fmt.Errorf("weir completion %s: %w", c.shell, err)
		}
		files = append(files, entry{c.file, 0o644, text})
	}
	return files, nil
}
