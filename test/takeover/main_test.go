// Package takeover tests cleat takeover as a process, with the rights that the
// chart gives it, against a real API server and a real fence service in front of
// a storage server, while the lost node writes on throughout.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/kubernetes/apiserver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/tree"
)

const (
	namespace = "cleat-system"
	account   = "system:serviceaccount:cleat-system:cleat-takeover"
	// healthCheckAccount is that of NodeHealthCheck (nodehealthcheck_test.go).
	healthCheckAccount = "system:serviceaccount:cleat-system:node-healthcheck"
)

// cleat is the program with crash points, which are inert unless the environment
// arms them; api is the API server of all tests.
var (
	cleat string
	api   *apiserver.Server
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	if !rig.IsRole() {
		if code, isInside := apiserver.Isolate(context.Background(), "helm", "csi-addons-manager", "csi-addons-sidecar"); !isInside {
			os.Exit(code)
		}
	}
	rig.Main(withAPI{m}, map[string]func() int{storage.RecordRole: storage.ServeRecords}, func() error {
		cleat = filepath.Join(os.TempDir(), "cleat")
		return testkit.BuildTo(context.Background(), cleat, testkit.Cleat, "-tags", tags)
	})
}

// withAPI runs the tests while the API server and, with the tag ceph, a Ceph cluster run.
type withAPI struct{ *testing.M }

func (w withAPI) Run() int {
	ctx, dir, cluster := context.Background(), filepath.Join(os.TempDir(), "api"), filepath.Join(os.TempDir(), "c")
	err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(cluster, 0o700))
	var starting sync.WaitGroup
	var stop func()
	var cephErr error
	starting.Go(func() { stop, cephErr = startCeph(cluster) })
	defer func() { stop() }()
	if err == nil {
		api, err = apiserver.Start(ctx, dir, account, healthCheckAccount)
	}
	if err == nil {
		defer api.Stop()
		err = install(ctx)
	}
	starting.Wait()
	if err = errors.Join(err, cephErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return w.M.Run()
}

// install applies what the chart renders for the controller, except for its
// Deployment, for which no kubelet runs.
func install(ctx context.Context) error {
	root, err := tree.Root()
	if err != nil {
		return err
	}
	helm := exec.CommandContext(ctx, apiserver.Program("helm"), "template", "cleat", filepath.Join(root, "deploy/chart"), "--namespace", namespace,
		"--kube-version", "1.36.0", "--set", "csi.enabled=false,takeover.enabled=true", "--set", "takeover.coverage.backends[0].networkFenceClass=any")
	text, err := helm.CombinedOutput()
	if err != nil {
		return fmt.Errorf("helm template: %w: %s", err, text)
	}
	return apply(ctx, append([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---\n"), text...))
}
