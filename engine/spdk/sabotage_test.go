//go:build crashpoints

package spdk

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
)

// sabotage is a build with a wrong order of steps, or without one, the kills of
// TestKilled that must show it, and the symptom.
type sabotage struct {
	name           string
	left           []workload.Replacement
	kills, symptom string
}

func sabotages() []sabotage {
	return []sabotage{
		{
			name: "the lvol is created before the record",
			left: []workload.Replacement{
				{File: "engine/spdk/create.go", Old: "b.putNew(ctx, p, r)", New: "error(nil)"},
				{File: "engine/spdk/create.go", Old: "b.put(ctx, &r, done)", New: "b.put(ctx, nil, done)"},
			},
			kills: "restore", symptom: "already has an lvol new, which this driver has no record of",
		},
		{
			name: "a repeated revocation does not wait for sessions",
			left: []workload.Replacement{{
				File: "engine/spdk/export.go", Old: "if !s.AllowAnyHost && len(s.Listeners) > 0 {", New: "if false {",
			}},
			kills: "enforce/export.removed", symptom: "the revoked client has 1 sessions after the repeat",
		},
		{
			name: "a volume that requires TLS keeps a listener without",
			left: []workload.Replacement{{
				File: "engine/spdk/tls.go", Old: "if l.SubNQN == s.NQN {", New: "if false {",
			}},
			kills: "tls/export.admitted", symptom: "does not listen with TLS alone",
		},
		{
			name: "no mark before an lvol is deleted",
			left: []workload.Replacement{{
				File: "engine/spdk/delete.go",
				Old:  "if err := e.put(ctx, &r, marked); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tcrash",
				New:  "crash",
			}},
			kills: "delete", symptom: "volume base is listed, but its lvol is deleted",
		},
		{
			name: "the record of a deleted volume is not removed",
			left: []workload.Replacement{{
				File: "engine/spdk/delete.go",
				Old:  "Hit(\"delete.deleted\")\n\treturn e.dropDeleted(ctx, t, r)", New: "Hit(\"delete.deleted\")\n\treturn nil",
			}},
			kills: "delete", symptom: "the database still has records of [\"base\"",
		},
	}
}

// TestKilled must fail for each of these builds; otherwise it proves nothing.
func TestSabotageTurnsRed(t *testing.T) {
	for _, s := range soak.Pick(2, sabotages()) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-tags=crashpoints", "-run=^TestKilled$/"+s.kills, workload.Overlay(t, s.left...), ".")
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("this build passed the kills of %s", s.kills)
			case !strings.Contains(string(out), s.symptom):
				t.Errorf("failed, but not with %q: %v: %s", s.symptom, err, out)
			default:
				t.Logf("failed, as expected: %s", s.symptom)
			}
		})
	}
}
