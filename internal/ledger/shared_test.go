package ledger

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

// Several nodes have one volume if all grants have the same mode of several
// nodes.
func TestGrantsOfSeveralNodes(t *testing.T) {
	for first, modes := range map[string]map[string]errs.Kind{
		"MULTI_NODE_MULTI_WRITER/block": {
			"MULTI_NODE_MULTI_WRITER/block": "", "MULTI_NODE_READER_ONLY/block": errs.Precondition, "SINGLE_NODE_WRITER/block": errs.Precondition,
		},
		"SINGLE_NODE_MULTI_WRITER/block": {
			"SINGLE_NODE_MULTI_WRITER/block": errs.Precondition, "MULTI_NODE_MULTI_WRITER/block": errs.Precondition,
		},
	} {
		for second, kind := range modes {
			l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
			grant := func(node, mode string) error {
				_, err := l.Grant(t.Context(), Grant{Volume: "v", Client: client(node, "192.0.2.1"), Mode: mode})
				return err
			}
			testkit.Must(t, grant("n2", first))
			if err := grant("n1", second); (err == nil) != (kind == "") || err != nil && !errors.Is(err, kind) {
				t.Errorf("%s beside %s: %v, want kind %q", second, first, err, kind)
			}
			testkit.Must(t, grant("n2", first)) // again
			if err := grant("n2", "other"); !errors.Is(err, errs.Exists) && kind != "" {
				t.Errorf("another mode on the same node: %v", err)
			}
			testkit.Must(t, l.Revoke(t.Context(), "v", "n2"))
			testkit.Must(t, grant("n1", second))
		}
	}
}
