// Package specs reads the reports of csi-sanity, the CSI project's conformance
// suite.
package specs

import (
	"encoding/json"
	"slices"
	"strings"
)

// States of a spec, as Ginkgo names them.
const (
	Passed  = "passed"
	Skipped = "skipped"
	Pending = "pending" // marked by the suite itself as not to be run
)

// Spec is the result of one spec in Ginkgo's JSON report.
type Spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string } // of a skipped spec: the reason
}

// Name returns the texts of the spec and of the groups that contain it.
func (s Spec) Name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// Parse returns the specs of a report.
func Parse(report []byte) ([]Spec, error) {
	var suites []struct{ SpecReports []Spec }
	if err := json.Unmarshal(report, &suites); err != nil {
		return nil, err
	}
	var all []Spec
	for _, s := range suites {
		for _, r := range s.SpecReports {
			if r.LeafNodeType == "It" {
				all = append(all, r)
			}
		}
	}
	return all, nil
}
