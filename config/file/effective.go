package file

import "github.com/weirproxy/weir/config"

// Effective returns the configuration in effect as YAML: defaults are filled in, and
// variables of the environment are replaced. It names key files but does not show their
// content. "(hidden)" replaces secrets; the first line then says so. Without secrets,
// weir can load the text again. Effective omits the default of node.
func Effective(c *config.Config) []byte {
	all, hid := c.Print()
	text := Encode(all)
	if hid {
		text = append([]byte("# "+config.Placeholder+" replaces secrets; put the secrets back before you load this file.\n"), text...)
	}
	return text
}

// EffectiveBeside returns what c has in addition to the file that it was merged with: the
// configuration made from a cluster's objects, in the format of a file. It is not part of
// any file.
func EffectiveBeside(c, file *config.Config) []byte {
	all := c.PrintBeside(file)
	if all == nil {
		return nil
	}
	return Encode(all)
}
