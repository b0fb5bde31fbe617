package access

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Misspelt returns ignored keys that resemble a key of a locator, which can
// belong to another project.
func Misspelt(contexts ...map[string]string) []string {
	protocol, err := protocolOf(contexts)
	if err != nil {
		return nil
	}
	var found []string
	for _, c := range contexts {
		for _, name := range slices.Sorted(maps.Keys(c)) {
			for _, d := range dialects() {
				if protocol != "" && protocol != d.protocol {
					continue
				}
				if key := d.resembles(name); key != "" {
					found = append(found, fmt.Sprintf("%s (%s?)", Quote(name), key))
					break
				}
			}
		}
	}
	return found
}

// resembles finds prefixes and near misses.
func (d dialect) resembles(name string) string {
	if _, known := d.canonical(name); known || strings.ContainsAny(name, "./") || len(name) < 3 {
		return ""
	}
	lower := strings.ToLower(name)
	shortest := func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) }
	for _, key := range slices.SortedFunc(maps.Keys(d.keys), shortest) {
		for _, word := range append([]string{key}, d.keys[key]...) {
			word = strings.ToLower(word)
			near := errs.Distance(lower, word) == 1 && (len(word) > 3 || len(lower) == len(word))
			if near || len(lower) > 3 && strings.HasPrefix(word, lower) {
				return key
			}
		}
	}
	return ""
}
