package source_test

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func cluster(t *testing.T, s *kubeapi.Server, change func(*source.ClusterConfig)) *source.Cluster {
	t.Helper()
	config := source.ClusterConfig{Kubeconfig: s.Kubeconfig(t), Node: "n1", Logger: testLogger(t)}
	if change != nil {
		change(&config)
	}
	return testkit.Value(source.NewCluster(config))(t)
}

func spec(mtu int) map[string]any {
	return map[string]any{"interfaces": []any{map[string]any{"pciAddress": "0000:3b:00.0", "numVfs": 4, "mtu": mtu}}}
}

func TestClusterSendsChanges(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n2", spec(1))
	out := run(t, cluster(t, s, nil))
	if u := testkit.Receive(t, "an update", out); !u.Gone {
		t.Fatalf("without an object: %+v", u)
	}
	s.SetSpec("n1", spec(1500))
	u := testkit.Receive(t, "an update", out)
	if !generation(1)(u) || u.State.UID == "" || u.State.Name != "n1" || u.State.Spec.Interfaces[0].MTU != 1500 {
		t.Fatalf("%+v", u)
	}
	first := u.State.UID
	s.SetStatus("n1", map[string]any{"syncStatus": "InProgress"})
	if u := testkit.Receive(t, "an update", out); u.State.Status.SyncStatus != nodestate.InProgress {
		t.Fatalf("%+v", u)
	}
	s.SetStatus("n1", map[string]any{"syncStatus": "InProgress"})
	s.SetSpec("n2", spec(2))
	s.Bookmark()
	silent(t, out)
	s.SetSpec("n1", spec(9000))
	if u := testkit.Receive(t, "an update", out); !generation(2)(u) || u.State.UID != first {
		t.Fatalf("%+v", u)
	}
	s.Delete("n1")
	if u := testkit.Receive(t, "an update", out); !u.Gone {
		t.Fatalf("%+v", u)
	}
	s.SetSpec("n1", spec(9000))
	if u := testkit.Receive(t, "an update", out); !generation(1)(u) || u.State.UID == first {
		t.Fatalf("recreated: %+v", u)
	}
	if n := s.Count("list"); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
}

func TestClusterResumesWatch(t *testing.T) {
	t.Parallel()
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	for n := int64(2); n < 5; n++ {
		s.EndWatches()
		s.SetSpec("n1", spec(int(n)))
		if u := testkit.Receive(t, "an update", out); !generation(n)(u) {
			t.Fatalf("%+v", u)
		}
	}
	s.EndWatches()
	silent(t, out)
	if n := s.Count("list"); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
}

func TestClusterExpiredVersion(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, nil))
	uid := testkit.ReceiveUntil(t, "generation 1", out, generation(1)).State.UID
	s.HoldEvents(true)
	s.Delete("n1")
	s.SetSpec("n1", spec(1))
	s.ExpireVersions()
	s.HoldEvents(false)
	s.EndWatches()
	u := testkit.ReceiveUntil(t, "another object", out, func(u source.Update) bool { return u.Err == nil && !u.Gone })
	if u.State.UID == uid {
		t.Errorf("uid %s is that of the old object", uid)
	}
	if n := s.Count("list"); n != 2 {
		t.Errorf("%d lists, want 2", n)
	}
}

func TestClusterAPIServerUnavailable(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	s.Refuse(http.StatusInternalServerError)
	s.EndWatches()
	if u := testkit.ReceiveUntil(t, "an error", out, failed); strings.Contains(u.Err.Error(), "secret") {
		t.Errorf("the token is in the error: %v", u.Err)
	}
	s.Refuse(0)
	testkit.ReceiveUntil(t, "generation 1 again", out, generation(1))
	s.SetSpec("n1", spec(2))
	testkit.ReceiveUntil(t, "generation 2", out, generation(2))
}

func TestClusterWithoutCRD(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.Refuse(http.StatusNotFound)
	out := run(t, cluster(t, s, nil))
	if u := testkit.Receive(t, "an update", out); !failed(u) || !strings.Contains(u.Err.Error(), "operator") {
		t.Fatalf("%+v", u)
	}
	s.Refuse(0)
	s.SetSpec("n1", spec(1))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
}

func TestClusterRenewsSilentWatch(t *testing.T) {
	t.Parallel()
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, func(c *source.ClusterConfig) { c.Timeout = 250 * time.Millisecond }))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	testkit.Eventually(t, "three watches", func() bool {
		select {
		case u := <-out:
			if !failed(u) && !generation(1)(u) {
				t.Fatalf("%+v", u)
			}
		default:
		}
		return s.Count("watch") >= 3
	})
}

func TestClusterRequestTimeout(t *testing.T) {
	t.Parallel()
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, func(c *source.ClusterConfig) { c.Timeout = 100 * time.Millisecond }))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	s.Fail(func(string) kubeapi.Fault { return kubeapi.Hung })
	s.EndWatches()
	testkit.ReceiveUntil(t, "an error", out, failed)
	s.Fail(nil)
	testkit.ReceiveUntil(t, "generation 1 again", out, generation(1))
}

// A daemon that withdraws devices on each generation must learn of invalid
// ones.
func TestClusterInvalidObject(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	s.SetSpec("n1", map[string]any{"interfaces": "none"})
	u := testkit.ReceiveUntil(t, "an error", out, failed)
	if u.State.Generation != 2 || u.State.UID == "" || u.State.Name != "n1" {
		t.Errorf("%+v", u.State)
	}
	if _, ok := errors.AsType[*strictjson.Problem](u.Err); !ok {
		t.Errorf("the cause is lost: %v", u.Err)
	}
	s.SetSpec("n1", spec(1))
	testkit.ReceiveUntil(t, "generation 3", out, generation(3))
}

func TestClusterStatus(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	s.SetStatus("n1", map[string]any{"syncStatus": "Failed", "lastSyncError": "x", "bridges": map[string]any{"kept": "yes"}})
	c := cluster(t, s, nil)
	before, _ := s.Get("n1")
	uid := before.Metadata["uid"].(string)
	conflicts := 2
	s.Fail(func(string) kubeapi.Fault {
		if conflicts--; conflicts >= 0 {
			return kubeapi.Conflict
		}
		return kubeapi.None
	})
	testkit.Must(t, c.UpdateStatus(t.Context(), uid, nodestate.Status{SyncStatus: nodestate.Succeeded,
		Interfaces: []nodestate.FoundInterface{{PCIAddress: "0000:3b:00.0", TotalVFs: 8, VFs: []nodestate.FoundVF{{Index: 0, PCIAddress: "0000:3b:02.0"}}}}}))
	want := map[string]any{"syncStatus": "Succeeded", "lastSyncError": "", "bridges": map[string]any{"kept": "yes"}, "interfaces": []any{
		map[string]any{"pciAddress": "0000:3b:00.0", "totalvfs": 8.0, "Vfs": []any{map[string]any{"pciAddress": "0000:3b:02.0", "vfID": 0.0}}},
	}}
	after, _ := s.Get("n1")
	testkit.Diff(t, "result", want, after.Status)
	s.Delete("n1")
	testkit.WantError(t, "gone", c.UpdateStatus(t.Context(), uid, nodestate.Status{}), source.ErrOther)
	s.SetSpec("n1", spec(1))
	testkit.WantError(t, "another", c.UpdateStatus(t.Context(), uid, nodestate.Status{}), source.ErrOther)
	if other, _ := s.Get("n1"); other.Status != nil {
		t.Error("another object got the status")
	}
}

func TestClusterWithoutConfiguration(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.Must(t, os.WriteFile(broken, []byte("clusters: ["), 0o600))
	for what, c := range map[string]struct {
		config source.ClusterConfig
		want   string
	}{
		"no pod":        {source.ClusterConfig{Node: "n1"}, "kubeconfig"},
		"no file":       {source.ClusterConfig{Node: "n1", Kubeconfig: "/nonexistent/kubeconfig"}, "/nonexistent/kubeconfig"},
		"broken file":   {source.ClusterConfig{Node: "n1", Kubeconfig: broken}, broken},
		"no node":       {source.ClusterConfig{}, "node"},
		"bad node":      {source.ClusterConfig{Node: "a/b"}, "a/b"},
		"bad namespace": {source.ClusterConfig{Node: "n1", Namespace: "../x"}, "../x"},
	} {
		if _, err := source.NewCluster(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The state read before must not look like the latest.
func TestClusterInvalidObjectAfterWatchRenewal(t *testing.T) {
	s := kubeapi.New(t, kubeapi.NodeStates())
	s.SetSpec("n1", spec(1))
	out := run(t, cluster(t, s, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	s.SetSpec("n1", map[string]any{"interfaces": "none"})
	testkit.ReceiveUntil(t, "an error", out, failed)
	s.EndWatches()
	testkit.Eventually(t, "another watch", func() bool { return s.Count("watch") >= 2 })
	silent(t, out)
}
