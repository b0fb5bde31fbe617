package image

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

func parsePackages(text string) ([]string, error) {
	var names []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !packageName.MatchString(line) {
			return nil, fmt.Errorf("package list: %q is not the name of a Debian package", line)
		}
		if slices.Contains(names, line) {
			return nil, fmt.Errorf("package list: %s is listed twice", line)
		}
		names = append(names, line)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("package list: it is empty")
	}
	return names, nil
}
