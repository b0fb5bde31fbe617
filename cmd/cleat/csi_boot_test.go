package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

// A node of both engines attaches no volume before its boot is reported.
func TestNodeReportsItsBootBeforeVolumes(t *testing.T) {
	for _, engine := range []string{engineCeph, engineCephFS} {
		t.Run(engine, func(t *testing.T) {
			api := kubeapi.New(t, kubeapi.Leases())
			p := testkit.Value(completed(t, "--engine="+engine, "--services=node", "--ceph-boot-leases=cleat-system/cleat-boot", "--ceph-kubeconfig="+api.Kubeconfig(t)))(t)
			config := node.Config{Store: filepath.Join(p.StateDir(), "node.db")}
			testkit.Must(t, p.Engine().Node(t.Context(), p, &config))
			t.Cleanup(func() { testkit.Must(t, p.Close(context.Background())) })
			manager := testkit.Open(node.Open(t.Context(), config))(t)
			testkit.WantError(t, "IsUsed before the node service is open", testkit.Err(p.IsUsed(t.Context())), errs.Unavailable, "not open yet")
			flags := bootFlags{leases: "cleat-system/cleat-boot", kubeconfig: api.Kubeconfig(t)}
			reporter := testkit.Value(flags.reporter(p, manager.IsUsed))(t)

			waiting, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			testkit.WantError(t, "Admit before the report", reporter.Admit(waiting), context.DeadlineExceeded, "report of this boot")
			testkit.Must(t, reporter.Run(t.Context()), reporter.Admit(t.Context()))
			if boots := testkit.Value(reporter.Leases.All(t.Context()))(t); len(boots) != 1 || boots["node-1"].ID == "" || boots["node-1"].Late {
				t.Errorf("reported %+v", boots)
			}
		})
	}
	kubeconfig := kubeapi.New(t, kubeapi.Leases()).Kubeconfig(t)
	for _, flags := range [][]string{{}, {"--ceph-boot-leases=a/b", "--ceph-kubeconfig=" + kubeconfig}} {
		p := testkit.Value(completed(t, append([]string{"--engine=ceph", "--services=node"}, flags...)...))(t)
		testkit.Must(t, p.Engine().Node(t.Context(), p, &node.Config{}), p.Close(context.Background()))
		if admits, want := p.Admit != nil, len(flags) > 0; admits != want {
			t.Errorf("flags %v: volumes wait for a report: %t, want %t", flags, admits, want)
		}
	}
	outside := testkit.Value(completed(t, "--engine=ceph", "--services=node", "--ceph-boot-leases=a/b", "--ceph-kubeconfig=/nowhere"))(t)
	testkit.WantError(t, "a kubeconfig that does not exist", outside.Engine().Node(t.Context(), outside, &node.Config{}), errs.Internal, "/nowhere")
	testkit.Must(t, outside.Close(context.Background()))
}
