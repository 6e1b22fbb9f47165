package script

import (
	"fmt"
	"regexp"
	"strings"
)

// directive is one directive of nginx: its name and its parameters, and the directives in its braces.
type directive struct {
	words []string
	block []directive
	open  bool // it has braces
}

// Limits of a snippet. Tenants of a cluster write snippets.
const (
	mostText       = 64 << 10 // bytes
	mostDirectives = 500
	mostDepth      = 4 // of braces
)

// cookieLua matches the code of oauth2-proxy's documentation, which sends the client a second cookie of the response of
// auth-url. weir sends all of them.
var cookieLua = regexp.MustCompile(`^\s*if ngx\.var\.\w+ ~= "" then\s+ngx\.header\["Set-Cookie"\] = "[^"]+=" \.\. ngx\.var\.\w+ \.\. ngx\.var\.auth_cookie:match\("\(; \.\*\)"\)\s+end\s*$`)

// lexer reads nginx configuration as ngx_conf_read_token does.
type lexer struct {
	text  string
	count int // directives so far
}

// directives reads directives until the end of the text, or of the block.
func (l *lexer) directives(depth int) (all []directive, err error) {
	for {
		d, end, err := l.directive(depth)
		switch {
		case err != nil:
			return nil, err
		case end:
			return all, nil
		}
		if l.count++; l.count > mostDirectives {
			return nil, fmt.Errorf("more than %d directives", mostDirectives)
		}
		all = append(all, d)
	}
}

// directive reads one directive. end means that the text or the block has no other directive.
func (l *lexer) directive(depth int) (d directive, end bool, err error) {
	for {
		l.skipSpace()
		if l.text == "" {
			if len(d.words) > 0 {
				return d, false, fmt.Errorf("no semicolon at the end of %q", d.words[0])
			}
			if depth > 0 {
				return d, false, fmt.Errorf("a brace that is not closed")
			}
			return d, true, nil
		}
		switch l.text[0] {
		case ';':
			l.text = l.text[1:]
			if len(d.words) == 0 {
				continue // nginx refuses it, and ingress-nginx then keeps its former configuration
			}
			return d, false, nil
		case '{':
			if len(d.words) == 0 || depth >= mostDepth {
				return d, false, fmt.Errorf("a brace in the wrong place")
			}
			if lua, rest, closed := strings.Cut(l.text[1:], "}"); d.words[0] == "access_by_lua_block" && closed && cookieLua.MatchString(lua) {
				l.text = rest
				return d, false, nil
			}
			if d.words[0] != "if" && d.words[0] != "location" { // the braces may contain another language, such as Lua
				return d, false, errUnknown(d)
			}
			l.text = l.text[1:]
			d.open = true
			d.block, err = l.directives(depth + 1)
			return d, false, err
		case '}':
			if len(d.words) > 0 || depth == 0 {
				return d, false, fmt.Errorf("a brace in the wrong place")
			}
			l.text = l.text[1:]
			return d, true, nil
		}
		word, err := l.word()
		if err != nil {
			return d, false, err
		}
		d.words = append(d.words, word)
	}
}

func (l *lexer) skipSpace() {
	for {
		l.text = strings.TrimLeft(l.text, " \t\r\n")
		if !strings.HasPrefix(l.text, "#") {
			return
		}
		_, l.text, _ = strings.Cut(l.text, "\n")
	}
}

// word reads one word, which may be quoted.
func (l *lexer) word() (string, error) {
	if q := l.text[0]; q == '"' || q == '\'' {
		return l.quoted(q)
	}
	var b strings.Builder
	for i := 0; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == '\\' && i+1 < len(l.text):
			i++
			escape(&b, l.text[i])
		case c == '$' && i+1 < len(l.text) && l.text[i+1] == '{': // a brace of a variable
			b.WriteString("${")
			i++
		case strings.IndexByte(" \t\r\n;{", c) >= 0:
			l.text = l.text[i:]
			return b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	l.text = ""
	return b.String(), nil
}

func (l *lexer) quoted(q byte) (string, error) {
	var b strings.Builder
	for i := 1; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == '\\' && i+1 < len(l.text):
			i++
			escape(&b, l.text[i])
		case c == q:
			l.text = l.text[i+1:]
			if l.text != "" && strings.IndexByte(" \t\r\n;{)", l.text[0]) < 0 {
				return "", fmt.Errorf("text behind the quotation mark of %q", b.String())
			}
			return b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	return "", fmt.Errorf("a quotation mark that is not closed")
}

// escape writes the character that follows a backslash.
func escape(b *strings.Builder, c byte) {
	switch c {
	case '"', '\'', '\\':
		b.WriteByte(c)
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case 'n':
		b.WriteByte('\n')
	default:
		b.WriteByte('\\')
		b.WriteByte(c)
	}
}

// Word reads a text that is one word of nginx configuration, which may be quoted.
func Word(text string) (string, error) {
	l := &lexer{text: text}
	word, err := l.word()
	if err == nil && strings.TrimSpace(l.text) != "" {
		err = fmt.Errorf("several words")
	}
	return word, err
}

// Quote returns a word of nginx configuration that means the text.
func Quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
