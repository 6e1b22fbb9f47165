package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
)

// These functions make values of a Route from objects, whose texts have no variables, and check
// what objects ask for as a file is checked. Their errors are the ends of sentences that begin
// with the value.

// LiteralTemplate returns the template of a text without variables.
func LiteralTemplate(text string) Template {
	return Template(strings.ReplaceAll(text, "{", "{{"))
}

// dollarNumber matches what would be the number of a group.
var dollarNumber = regexp.MustCompile(`\$([1-9])`)

// LiteralPath returns the template of a path without variables and groups.
func LiteralPath(path string) (Template, error) {
	path = dollarNumber.ReplaceAllString(path, "%24$1")
	if err := checkNewPath(path); err != nil {
		return "", err
	}
	return LiteralTemplate(path), nil
}

// NewPrefix returns the beginning of a path that replaces another one.
func NewPrefix(path string) (string, error) { return newPath.parse(path) }

// CheckHeaderValue returns why a text cannot be the value of a header, or nil.
func CheckHeaderValue(text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return fmt.Errorf("has a control character, which HTTP headers cannot have")
	}
	_, err := headerTemplate.parse(string(LiteralTemplate(text)))
	return err
}

// ParseOrigin returns an origin of the CORS protocol as CORS.Origins has it.
func ParseOrigin(text string) (string, error) { return parseOrigin(text) }

// CheckExpression returns why a text cannot be a regular expression of a path, or nil.
func CheckExpression(text string) error {
	_, _, err := expression.Compile(text, expression.Start)
	return err
}

// CheckWholeExpression returns why a text cannot be a regular expression of a whole value, or nil.
func CheckWholeExpression(text string) error {
	_, _, err := expression.Compile(text, expression.Whole)
	return err
}
