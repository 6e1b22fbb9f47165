package expression

import (
	"regexp/syntax"
	"slices"
	"strings"
)

const (
	maxBeginnings = 100 // of one expression
	maxClass      = 32  // characters of a class, in both cases
)

// Beginnings compiles a regular expression (RE2) that matches the beginning of a value in any case.
// all are texts, in lower case: each match begins with one of them in some case. There are at most
// 100 of them. The error quotes text.
func Beginnings(text string) (all []string, err error) {
	if _, _, err := Compile(text, StartFolded); err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl|syntax.FoldCase)
	if err != nil {
		return nil, err
	}
	all, _ = beginnings(parsed)
	return all, nil
}

// beginnings returns the ASCII texts, in lower case, with which the matches of an expression begin
// in some case. whole is true if these are the whole matches.
func beginnings(e *syntax.Regexp) (all []string, whole bool) {
	switch e.Op {
	case syntax.OpCapture:
		return beginnings(e.Sub[0])
	case syntax.OpPlus:
		all, _ = beginnings(e.Sub[0])
		return all, false
	case syntax.OpAlternate:
		return beginningsOfAny(e.Sub)
	case syntax.OpConcat:
		return beginningsOfAll(e.Sub)
	case syntax.OpCharClass:
		return beginningsOfClass(e.Rune)
	}
	text, whole := literal(e)
	return []string{text}, whole
}

func beginningsOfAny(of []*syntax.Regexp) (all []string, whole bool) {
	whole = true
	for _, one := range of {
		more, isWhole := beginnings(one)
		all, whole = append(all, more...), whole && isWhole
	}
	if len(all) > maxBeginnings {
		return []string{""}, false
	}
	return all, whole
}

func beginningsOfAll(of []*syntax.Regexp) (all []string, whole bool) {
	all = []string{""}
	for _, part := range of {
		more, whole := beginnings(part)
		if len(all)*len(more) > maxBeginnings {
			return all, false
		}
		var longer []string
		for _, first := range all {
			for _, rest := range more {
				longer = append(longer, first+rest)
			}
		}
		if all = longer; !whole {
			return all, false
		}
	}
	return all, true
}

// beginningsOfClass returns the characters of a small class.
func beginningsOfClass(ranges []rune) (all []string, whole bool) {
	n := 0
	for i := 0; i < len(ranges); i += 2 {
		if n += int(ranges[i+1]-ranges[i]) + 1; n > maxClass {
			return []string{""}, false
		}
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			if r > 0x7e {
				return []string{""}, false
			}
			if c := strings.ToLower(string(r)); !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all, len(all) > 0
}
