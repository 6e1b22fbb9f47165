package config

// nearest returns the candidate that s was probably meant to be, or "" if none is
// similar: at most a third of the letters may be wrong, but one in any case, and not all.
func nearest(s string, candidates []string) string {
	best, limit := "", max(1, len(s)/3)
	if len(s) > 100 {
		return ""
	}
	for _, c := range candidates {
		if c == s {
			continue
		}
		if n := distance(s, c); n <= limit && n < max(len(s), len(c)) {
			best, limit = c, n-1
		}
	}
	return best
}

// distance counts the letters to insert, delete, change or swap with their neighbor to
// turn a into b (optimal string alignment).
func distance(a, b string) int {
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
