package crash

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/crash/workload"
)

// sabotages are builds without one durable write, the crash point at which the
// omission must show, and the symptom.
var sabotages = []struct {
	name           string
	left           workload.Replacement
	point, symptom string
}{
	{
		name: "no mark before a volume's file is removed",
		left: workload.Replacement{
			File: "engine/local/delete.go",
			Old:  "if err := e.putVolume(ctx, id, r); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif was == copying {",
			New:  "if was == copying {",
		},
		point: "delete.removed", symptom: "the pool lacks volumes/",
	},
	{
		name: "no record before an inline volume is created",
		left: workload.Replacement{
			File: "node/inline.go",
			Old:  "if err := m.records.putPublish(ctx, r.Target, rec); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tdefer func() {",
			New:  "defer func() {",
		},
		point: "publish.inline-created", symptom: "without an owner",
	},
}

// The crash test must fail for a build that omits one durable write; otherwise
// it proves nothing.
func TestSabotageTurnsRed(t *testing.T) {
	t.Parallel()
	for i, s := range sabotages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			st := newInstance(t, workload.BuildWith(t, s.left), "sabotaged", uint64(i)+1, true, "--pool-image", "2GiB")
			for round := range 40 {
				_, err := st.Round(t.Context(), s.point+"=1", patience)
				if err == nil {
					err = st.Settle(t.Context())
				}
				if err == nil {
					continue
				}
				if !strings.Contains(err.Error(), s.symptom) {
					t.Fatalf("failed, but not with %q: %v", s.symptom, err)
				}
				t.Logf("failed after %d kills, as expected: %s", round+1, s.symptom)
				return
			}
			t.Error("a build without this durable write passed the crash test")
		})
	}
}
