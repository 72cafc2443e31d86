// Package spell finds the known word that a mistyped one was probably meant to
// be, for error messages.
package spell

// Nearest returns the known word that the fewest single-byte edits part from word,
// the first of several; "" where every one takes more than most.
func Nearest(word string, known []string, most int) string {
	best, least := "", most+1
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance counts the edits that turn a into b: bytes put in, left out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
