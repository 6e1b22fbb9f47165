// Command compare plays the same random configurations and requests against two binaries of weir, and
// prints each difference that users or endpoints could see: answers, bytes at the endpoint, lines of the
// access log, metrics, what "weir check", "explain", "lint" and "migrate" print. It is for changes of the
// structure, which must change none of these.
//
//	go run ./e2e/compare -old /path/of/old/weir -new /path/of/new/weir -seed 1 -rounds 100
//
// A seed always gives the same round. The test of this package plays a few rounds against the weir of the
// tree, and compares them with what an earlier binary did (testdata).
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	old := flag.String("old", "", "the `path` of the binary to compare with")
	now := flag.String("new", "", "the `path` of the binary to test")
	seed := flag.Uint64("seed", 1, "the seed of the first round")
	rounds := flag.Uint64("rounds", 1, "the number of rounds, with one seed after the other")
	flag.Parse()
	if *old == "" || *now == "" {
		flag.Usage()
		os.Exit(2)
	}
	different := 0
	for s := *seed; s < *seed+*rounds; s++ {
		lines, err := differences(*old, *now, s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "seed %d: %v\n", s, err)
			os.Exit(1)
		}
		if len(lines) > 0 {
			different++
			fmt.Printf("== seed %d\n", s)
			for _, line := range lines[:min(len(lines), 40)] {
				fmt.Println(line)
			}
		}
	}
	fmt.Printf("%d of %d rounds differ\n", different, *rounds)
	if different > 0 {
		os.Exit(1)
	}
}

// differences plays a round with both binaries.
func differences(old, now string, seed uint64) ([]string, error) {
	before, err := round(old, seed)
	if err != nil {
		return nil, fmt.Errorf("the old binary: %w", err)
	}
	after, err := round(now, seed)
	if err != nil {
		return nil, fmt.Errorf("the new binary: %w", err)
	}
	return diff(before, after), nil
}

// round plays the round of a seed, and returns what was seen.
func round(binary string, seed uint64) ([]string, error) {
	dir, err := os.MkdirTemp("", "weir-compare")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	s := &side{binary: path, dir: dir}
	defer s.close()
	seen, err := s.play(newWorld(seed))
	if err != nil {
		return nil, err
	}
	return append(seen, s.convert(newWorld(seed))...), nil
}

// diff returns the lines that only one of two lists has, in their order.
func diff(before, after []string) []string {
	var lines []string
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(before) > 0 && len(after) > 0 && before[0] == after[0]:
			before, after = before[1:], after[1:]
			continue
		case len(after) == 0, len(before) > 0 && !slices.Contains(after, before[0]):
			lines, before = append(lines, "- "+before[0]), before[1:]
		case len(before) == 0 || !slices.Contains(before, after[0]):
			lines, after = append(lines, "+ "+after[0]), after[1:]
		default: // both are elsewhere in the other list
			lines, before = append(lines, "- "+before[0]), before[1:]
		}
	}
	return lines
}
