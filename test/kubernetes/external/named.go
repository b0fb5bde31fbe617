package external

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed named.txt
var named string

// Named returns the few specs that run for every change.
func Named() ([]Spec, error) { return parseNamed(named) }

// parseNamed reads lines of the form DRIVER: NAME; # starts a comment.
func parseNamed(text string) ([]Spec, error) {
	var specs []Spec
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		driver, name, ok := strings.Cut(line, ": ")
		if !ok || !strings.HasPrefix(name, "[Testpattern: ") {
			return nil, fmt.Errorf("named specs: %q: want DRIVER: [Testpattern: …", line)
		}
		s := Spec{Driver: driver, Name: name}
		if slices.Contains(specs, s) {
			return nil, fmt.Errorf("named specs: duplicate %q", line)
		}
		specs = append(specs, s)
	}
	return specs, nil
}
