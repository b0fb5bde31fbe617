package errs

// Nearest returns the first candidate with the smallest edit distance, or "" if
// none is a likely misspelling.
func Nearest(word string, candidates []string) string {
	best, fewest := "", max(len([]rune(word))/3, 2)+1
	for _, c := range candidates {
		if d := Distance(word, c); d < fewest {
			best, fewest = c, d
		}
	}
	return best
}

// Distance is the edit distance; a transposition of neighbors counts once.
func Distance(from, to string) int {
	a, b := []rune(from), []rune(to)
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := 1
			if a[i-1] == b[j-1] {
				replace = 0
			}
			best := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				best = min(best, rows[i-2][j-2]+1)
			}
			rows[i][j] = best
		}
	}
	return rows[len(a)][len(b)]
}
