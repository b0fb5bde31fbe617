// Package nearest finds the word that was probably meant, for error messages
// that say what would have been right.
package nearest

// Nearest returns the candidate with the fewest edits to word, or "" when
// none is close enough to be a likely slip. Of equals the first one wins.
func Nearest(word string, candidates []string) string {
	best, fewest := "", max(len([]rune(word))/3, 2)+1
	for _, c := range candidates {
		if d := distance([]rune(word), []rune(c)); d < fewest {
			best, fewest = c, d
		}
	}
	return best
}

// distance is Levenshtein's: insertions, deletions and replacements.
func distance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range b {
			above := row[j+1]
			cost := diagonal
			if x != y {
				cost = 1 + min(diagonal, above, row[j])
			}
			row[j+1], diagonal = cost, above
		}
	}
	return row[len(b)]
}
