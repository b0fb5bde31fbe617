package takeover

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/takeover/plan"
)

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
