package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/disk"
)

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages into a folder",
		Long: `Man writes one manual page for each command: weir.1, weir-run.1 and so on, and
weir.yaml.5 with the keys of the configuration. If the folder is called man1, that
page goes into man5 beside it. Man creates the folders if they do not exist, and
replaces older pages.`,
		Example: `  weir man /usr/local/share/man/man1 && man weir-run`,
		Args:    arguments(1, 1, "write one folder: weir man FOLDER"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := writeManual(c.Root(), args[0]); err != nil {
				return fmt.Errorf("cannot write the manual pages: %w", err)
			}
			return nil
		},
	}
}

// writeManual writes the pages. The same binary always writes the same pages.
func writeManual(root *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	date := commitTime(info)
	for _, c := range allCommands(root) {
		if err := disk.Replace(filepath.Join(folder, pageName(c)+".1"), manualPage(c, date), 0o644); err != nil {
			return err
		}
	}
	if filepath.Base(folder) == "man1" {
		folder = filepath.Join(folder, "..", "man5")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	return disk.Replace(filepath.Join(folder, "weir.yaml.5"), configPage(date), 0o644)
}

// configPage is the page of the configuration file.
func configPage(date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH WEIR.YAML 5 %s \"weir %s\" weir\n.SH NAME\nweir.yaml \\- the configuration of weir\n", date.Format(time.DateOnly), roff(buildVersion()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff("The configuration of weir is one YAML file: /etc/weir/weir.yaml in the Debian package. weir check reports all errors in it. "+
		"Names that users choose are NAME here, and [] stands for the elements of a list. The smallest useful file:"))
	fmt.Fprintf(&b, ".PP\n%s.SH KEYS\n", verbatim(`listeners:
  web: {address: ":8080", protocol: http}
routes:
  - {listeners: [web], backend: app}
backends:
  app: {endpoints: ["127.0.0.1:9001"]}`))
	for _, k := range config.Reference() {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(k.Key), roff(strings.ReplaceAll(k.Text, "\n", " ")))
	}
	b.WriteString(".SH SEE ALSO\n.BR weir\\-check (1) ,\n.BR weir\\-explain (1) ,\n.BR weir\\-fmt (1)\n")
	return b.Bytes()
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manualPage is the page of one command in the format of man(7).
func manualPage(c *cobra.Command, date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 %s \"weir %s\" weir\n", roff(strings.ToUpper(pageName(c))), date.Format(time.DateOnly), roff(buildVersion()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", verbatim(c.Long))
	if c.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range c.Commands() {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
		}
	}
	c.InitDefaultHelpFlag()
	b.WriteString(".SH OPTIONS\n")
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { writeFlag(&b, f) })
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n%s", verbatim(c.Example))
	}
	var related []string
	if c.HasParent() {
		related = append(related, pageName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		related = append(related, pageName(sub))
	}
	for i, name := range related {
		related[i] = ".BR " + roff(name) + " (1)"
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(related, " ,\n"))
	return b.Bytes()
}

func writeFlag(b *bytes.Buffer, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	value, usage := pflag.UnquoteUsage(f)
	text := "--" + f.Name
	if f.Shorthand != "" {
		text = "-" + f.Shorthand + ", " + text
	}
	if value != "" {
		text += " " + value
	}
	switch f.DefValue {
	case "", "false", "0", "0s", "[]": // nothing happens by default
	default:
		usage += " (default " + f.DefValue + ")"
	}
	fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(text), roff(usage))
}

// verbatim shows a text with its lines as they are: the texts of commands have tables.
func verbatim(text string) string {
	var b strings.Builder
	b.WriteString(".nf\n")
	for _, line := range strings.Split(text, "\n") {
		b.WriteString(roff(line) + "\n")
	}
	b.WriteString(".fi\n")
	return b.String()
}

// roff escapes one line of text: a backslash begins an escape, a dot or an apostrophe at the
// beginning is a request, and a plain hyphen may become another character.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}

// commitTime is the time of the commit that the binary was built from, or the beginning of
// 1970 if the build does not know it.
func commitTime(info *debug.BuildInfo) time.Time {
	if info != nil {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
					return t
				}
			}
		}
	}
	return time.Unix(0, 0).UTC()
}
