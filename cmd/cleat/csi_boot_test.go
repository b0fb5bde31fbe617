package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
)

// A node of both engines attaches no volume before its boot is reported.
func TestNodeReportsItsBootBeforeVolumes(t *testing.T) {
	for _, engine := range []string{engineCeph, engineCephFS} {
		t.Run(engine, func(t *testing.T) {
			api := kubeapi.New(t, kubeapi.Leases())
			d := testkit.Value(completed(t, "--engine="+engine, "--services=node", "--ceph-boot-leases=cleat-system/cleat-boot", "--ceph-kubeconfig="+api.Kubeconfig(t)))(t)
			d.Logger = slog.New(slog.DiscardHandler)
			db := testkit.Open(store.Open(t.Context(), filepath.Join(d.StateDir, "fences.db"), store.Options{Role: "fences", Version: 1}))(t)
			d.ledger = ledger.New(db)
			config := node.Config{Store: filepath.Join(d.StateDir, "node.db")}
			testkit.Must(t, d.storage.node(t.Context(), d, &config))
			t.Cleanup(func() { testkit.Must(t, d.Close(context.Background())) })
			manager := testkit.Open(node.Open(t.Context(), config))(t)
			admission := testkit.Value(d.bootAdmission(manager))(t)
			self := volume.Client{Node: "node-1"}

			waiting, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			testkit.WantError(t, "Enter before the report", testkit.Err(admission.Enter(waiting, self)), context.DeadlineExceeded, "report of this boot")
			testkit.Must(t, d.reporting(t.Context()))
			testkit.Value(admission.Enter(t.Context(), self))(t)()
			if boots := testkit.Value(d.boots.All(t.Context()))(t); len(boots) != 1 || boots["node-1"].ID == "" || boots["node-1"].Late {
				t.Errorf("reported %+v", boots)
			}
		})
	}
	d := testkit.Value(completed(t, "--engine=ceph", "--services=node"))(t)
	if admission := testkit.Value(d.bootAdmission(nil))(t); admission != d.ledger || d.reporting != nil {
		t.Error("without --ceph-boot-leases the boot is reported")
	}
	outside := testkit.Value(completed(t, "--engine=ceph", "--services=node", "--ceph-boot-leases=a/b", "--ceph-kubeconfig=/nowhere"))(t)
	testkit.WantError(t, "a kubeconfig that does not exist", outside.storage.node(t.Context(), outside, &node.Config{}), errs.Internal, "/nowhere")
	testkit.Must(t, outside.Close(context.Background()))
}
