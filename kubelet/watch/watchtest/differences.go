package watchtest

import (
	"fmt"
	"strings"
)

// Differences is the table of what the kubelet does otherwise, as it stands in
// docs/plugins.md.
func Differences(cases []Case) string {
	var b strings.Builder
	b.WriteString("| case | here | kubelet 1.36 | why |\n|---|---|---|---|\n")
	for _, c := range cases {
		if c.Kubelet != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, cell(c.Want), cell(c.Kubelet), cell(c.Why))
		}
	}
	return b.String()
}

// cell keeps the words of a text from being taken for markup.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
