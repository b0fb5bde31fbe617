package watchtest

import (
	"fmt"
	"strings"
)

// Differences returns docs/plugins.md's table of cases in which the kubelet
// differs.
func Differences(cases []Case) string {
	var b strings.Builder
	b.WriteString("| case | here | kubelet 1.37 | why |\n|---|---|---|---|\n")
	for _, c := range cases {
		if c.Kubelet != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, cell(c.Want), cell(c.Kubelet), cell(c.Why))
		}
	}
	return b.String()
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
