package nodeservice

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/sanity/specs"
	"github.com/cleatproject/cleat/test/testkit"
)

// Sanity runs csi-sanity's specs of the node service in the guest, which has the
// program suite (testkit.Suite). The controller has an address for guests. Specs
// can be skipped for one reason.
func (n *Node) Sanity(controller, skipped string, flags ...string) {
	n.Helper()
	const report = "/run/sanity.json"
	ctx, cancel := context.WithTimeout(n.Context(), 5*time.Minute)
	defer cancel()
	out, err := n.Guest.Run(ctx, append([]string{"suite", "-endpoint=unix://" + Socket, "-controllerendpoint=dns:///" + controller,
		"-mountdir=" + Volumes + "/sanity-mount", "-stagingdir=" + Volumes + "/sanity-staging",
		"-ginkgo.focus=Node Service", "-ginkgo.json-report=" + report, "-ginkgo.no-color"}, flags...)...)
	if err != nil {
		n.Errorf("csi-sanity: %v\n%s", err, out)
	}
	count := map[string]int{}
	for _, s := range testkit.Value(specs.Parse([]byte(n.Read(report))))(n) {
		if !slices.ContainsFunc(s.ContainerHierarchyTexts, func(text string) bool { return strings.HasPrefix(text, "Node Service") }) {
			continue // also skipped
		}
		count[s.State]++
		isSkipped := s.State == specs.Skipped && skipped != "" && strings.Contains(s.Failure.Message, skipped)
		if s.State != specs.Passed && !isSkipped {
			n.Errorf("csi-sanity: %s: %s: %s", s.Name(), s.State, s.Failure.Message)
		}
	}
	if count[specs.Passed] < 25 {
		n.Errorf("csi-sanity: %v", count)
	}
	fmt.Printf("REPORT: %s: csi-sanity node %v\n", n.Name(), count)
}
