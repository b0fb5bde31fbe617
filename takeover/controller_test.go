package takeover

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/takeover/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

// What a former leader knows ages, and is not reported beside what the leader knows.
func TestMetricsOfAFormerLeader(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := testkit.Value(New(Config{Client: fakeClient(t, "{apiVersion: v1, kind: Node, metadata: {name: lost}}"), Namespace: "ns", Lease: "l", Identity: "i", Metrics: registry}))(t)
	stop := testkit.Go(t, func(ctx context.Context) error { return c.lead(ctx, 1) })
	remediations := func() float64 { return testkit.Metric(t, registry, "cleat_takeover_remediations") }
	testkit.Eventually(t, "a leader that reports", func() bool { return remediations() > 0 })
	if stop(); remediations() != 0 || testkit.Metric(t, registry, "cleat_takeover_leader") != 0 {
		t.Errorf("%v remediations of a former leader", remediations())
	}
}

// A pass is due for what changed, and for the oldest that wait when others have
// ended.
func TestDue(t *testing.T) {
	waiting := plan.Status{Conditions: []plan.Condition{{Type: plan.Processing, Status: "False", Reason: plan.ReasonTooMany}}}
	fencing := plan.Status{Intent: &plan.Intent{}}
	remediation := func(name string, age time.Duration, s plan.Status) *Remediation {
		return &Remediation{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(-age)),
		}, Status: s}
	}
	all := []*Remediation{
		remediation("young", time.Minute, waiting), remediation("old", time.Hour, waiting), remediation("fencing", 0, fencing),
		remediation("older", 2*time.Hour, waiting), remediation("new", 0, plan.Status{}),
	}
	known := map[types.UID]string{"young": "1", "old": "1", "older": "1", "fencing": "1", "new": "0"}
	for _, c := range []struct {
		limit int
		want  []string
	}{
		{1, []string{"new"}},
		{2, []string{"new", "older"}},
		{3, []string{"new", "older", "old"}},
		{9, []string{"new", "older", "old", "young"}},
	} {
		names, now := due(all, known, c.limit)
		if diff := cmp.Diff(c.want, names); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", c.limit, diff)
		}
		if again, _ := due(all, now, 1); len(again) > 0 {
			t.Errorf("due again: %v", again)
		}
	}
}
