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

// Compare says where two runs of the same cases differ without a word on it in
// the case, or agree though the case says otherwise.
func Compare(here, kubelet []Result) error {
	var wrong []string
	for i, r := range here {
		k := kubelet[i]
		switch {
		case r.Err != nil || k.Err != nil: // each run's own check tells
		case r.Got != k.Got && (r.Kubelet == "" || r.Why == ""):
			wrong = append(wrong, fmt.Sprintf("%s: nothing explains the difference between %q here and %q in the kubelet", r.ID(), r.Got, k.Got))
		case r.Got == k.Got && r.Kubelet != "":
			wrong = append(wrong, fmt.Sprintf("%s: no difference is left: both came to %q", r.ID(), r.Got))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(wrong, "\n"))
}
