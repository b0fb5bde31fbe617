package nodeservice

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

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
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	testkit.Must(n, json.Unmarshal([]byte(n.Read(report)), &suites))
	count := map[string]int{}
	for _, s := range suites {
		for _, one := range s.SpecReports {
			if !slices.ContainsFunc(one.ContainerHierarchyTexts, func(text string) bool { return strings.HasPrefix(text, "Node Service") }) {
				continue // also skipped
			}
			count[one.State]++
			isSkipped := one.State == "skipped" && skipped != "" && strings.Contains(one.Failure.Message, skipped)
			if one.State != "passed" && !isSkipped {
				n.Errorf("csi-sanity: %v %s: %s: %s", one.ContainerHierarchyTexts, one.LeafNodeText, one.State, one.Failure.Message)
			}
		}
	}
	if count["passed"] < 25 {
		n.Errorf("csi-sanity: %v", count)
	}
	fmt.Printf("REPORT: %s: csi-sanity node %v\n", n.Name(), count)
}
