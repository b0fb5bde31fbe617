package bootlease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/bootlease"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
)

const (
	machineID   = "0123456789abcdef0123456789abcdef\n"
	productUUID = "4C4C4544-0042-3510-8052-B4C04F564433\n"
)

// machine is a node, with its files.
type machine struct {
	root, dir string
	used      atomic.Bool
}

func newMachine(t *testing.T, id, uuid string) *machine {
	t.Helper()
	m := &machine{root: t.TempDir(), dir: t.TempDir()}
	m.write(t, filepath.Join("proc", "1", "root", "etc", "machine-id"), id)
	m.write(t, "sys/class/dmi/id/product_uuid", uuid)
	m.boot(t, "boot-1")
	return m
}

func (m *machine) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(m.root, path)
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
}

func (m *machine) boot(t *testing.T, id string) {
	t.Helper()
	m.used.Store(false)
	m.write(t, "proc/sys/kernel/random/boot_id", id+"\n")
}

func leases(t *testing.T, s *kubeapi.Server, prefix string) *bootlease.Leases {
	t.Helper()
	c := bootlease.Config{Kubeconfig: s.Kubeconfig(t), Namespace: kubeapi.Leases().Namespace, Prefix: prefix}
	return testkit.Value(bootlease.New(c))(t)
}

// start returns a new process of the machine. wait is for the report.
func (m *machine) start(t *testing.T, s *kubeapi.Server, wait time.Duration) *bootlease.Reporter {
	t.Helper()
	return testkit.Value(bootlease.NewReporter(bootlease.ReporterConfig{
		Leases: leases(t, s, "cleat-boot"), Node: "node.a", Dir: m.dir, Root: m.root, Wait: wait, Pause: time.Millisecond,
		IsUsed: func(context.Context) (bool, error) { return m.used.Load(), nil },
		Logger: testkit.NewLog(t).Logger(),
	}))(t)
}

func last(t *testing.T, s *kubeapi.Server) volume.Boot {
	t.Helper()
	return testkit.Value(leases(t, s, "cleat-boot").All(t.Context()))(t)["node.a"]
}

func wantBoot(t *testing.T, s *kubeapi.Server, id string, late bool) volume.Boot {
	t.Helper()
	b := last(t, s)
	if b.ID != id || b.Late != late {
		t.Errorf("the report is %+v, want boot %q, late %t", b, id, late)
	}
	return b
}

// A machine reports each boot once, and stays the same machine.
func TestReports(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	m := newMachine(t, machineID, productUUID)
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	first := wantBoot(t, s, "boot-1", false)
	if first.Machine == "" {
		t.Error("the machine is not known")
	}
	m.used.Store(true) // after the report
	writes := s.Count("create") + s.Count("update")
	again := m.start(t, s, testkit.Timeout)
	testkit.Must(t, again.Run(t.Context()), again.Admit(t.Context()))
	wantBoot(t, s, "boot-1", false)
	if n := s.Count("create") + s.Count("update"); n != writes {
		t.Errorf("%d writes of a boot that was reported", n-writes)
	}
	m.boot(t, "boot-2")
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	if second := wantBoot(t, s, "boot-2", false); second.Machine != first.Machine {
		t.Errorf("another machine: %s, %s", first.Machine, second.Machine)
	}
	if all := testkit.Value(leases(t, s, "cleat").All(t.Context()))(t); len(all) != 0 {
		t.Errorf("the reports of another driver are %v", all)
	}
}

// Another machine under the name of a node is never taken for the first one, also
// when that comes back, and after the Lease was deleted.
func TestAnotherMachine(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	seen := map[string]string{}
	report := func(what, id, uuid, boot string) {
		t.Helper()
		m := newMachine(t, id, uuid)
		m.boot(t, boot)
		testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
		b := wantBoot(t, s, boot, false)
		if other, isKnown := seen[b.Machine]; isKnown {
			t.Errorf("%s is the machine of: %s", what, other)
		}
		seen[b.Machine] = what
	}
	report("the first", machineID, productUUID, "1")
	report("a clone of its disk", machineID, "5"+productUUID[1:], "2")
	report("the first that comes back", machineID, productUUID, "3")
	report("another disk", "f"+machineID[1:], productUUID, "4")
	s.Delete("cleat-boot.node.a")
	report("a new Lease", "f"+machineID[1:], productUUID, "5")
	for _, m := range []*machine{
		newMachine(t, "uninitialized\n", productUUID), newMachine(t, strings.Repeat("0", 32)+"\n", productUUID),
		newMachine(t, machineID, "Not Settable\n"), newMachine(t, machineID, "03000200-0400-0500-0006-000700080009\n"),
	} {
		testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
		if b := wantBoot(t, s, "boot-1", false); b.Machine != "" {
			t.Errorf("a machine without ids is %s", b.Machine)
		}
	}
}

// Faults of single requests are repeated, and change nothing else.
func TestFaults(t *testing.T) {
	for name, fault := range map[string]kubeapi.Fault{
		"changed": kubeapi.Changed, "conflict": kubeapi.Conflict, "failed": kubeapi.Failed, "lost": kubeapi.Lost, "dropped": kubeapi.Dropped, "late": kubeapi.Late,
	} {
		for _, verb := range []string{"get", "create", "update"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				s := kubeapi.New(t, kubeapi.Leases())
				m := newMachine(t, machineID, productUUID)
				var once sync.Once
				s.Fail(func(of string) (f kubeapi.Fault) {
					if of == verb {
						once.Do(func() { f = fault })
					}
					return f
				})
				testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
				first := wantBoot(t, s, "boot-1", false)
				m.boot(t, "boot-2")
				testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
				if b := wantBoot(t, s, "boot-2", false); b.Machine != first.Machine {
					t.Errorf("another machine: %+v, %+v", first, b)
				}
			})
		}
	}
}

// Without an API server volumes are attached after a bounded wait, and the report
// that follows is late, in later processes too.
func TestUnreachable(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	m := newMachine(t, machineID, productUUID)
	s.Fail(func(string) kubeapi.Fault { return kubeapi.Failed })
	ctx, stop := context.WithCancel(t.Context())
	r := m.start(t, s, 10*time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	testkit.Must(t, r.Admit(t.Context()), r.Admit(t.Context()))
	stop()
	testkit.Must(t, <-ended)
	s.Fail(nil)
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	wantBoot(t, s, "boot-1", true)
	m.boot(t, "boot-2")
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	wantBoot(t, s, "boot-2", false)

	s.Refuse(500)
	testkit.WantError(t, "All", testkit.Err(leases(t, s, "cleat-boot").All(t.Context())), errs.Unavailable, "list the Leases cleat-system/cleat-boot.*")
	waiting := m.start(t, s, testkit.Timeout)
	testkit.WantError(t, "Admit in a call that ended", waiting.Admit(testkit.Canceled(t)), context.Canceled, "wait for the report")
}

// Volumes that wait are admitted by the report, not by the end of the wait: it is
// not late. An API server that hangs delays no volume for longer.
func TestAdmitWaits(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	m := newMachine(t, machineID, productUUID)
	r := m.start(t, s, testkit.Timeout)
	admitted := make(chan error, 1)
	go func() { admitted <- r.Admit(t.Context()) }()
	testkit.Must(t, r.Run(t.Context()), <-admitted)
	wantBoot(t, s, "boot-1", false)

	m.boot(t, "boot-2")
	hung := make(chan struct{}, 100)
	s.Fail(func(string) kubeapi.Fault { hung <- struct{}{}; return kubeapi.Hung })
	ctx, stop := context.WithCancel(t.Context())
	r = m.start(t, s, 10*time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-hung
	testkit.Must(t, r.Admit(t.Context()))
	stop()
	testkit.Must(t, <-ended)
}

// A volume that was attached before the first report, by an earlier build, makes
// it late. One that cannot be found out is not reported.
func TestUsedBefore(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	m := newMachine(t, machineID, productUUID)
	m.used.Store(true)
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	wantBoot(t, s, "boot-1", true)
	m.used.Store(false) // detached: nothing of before the report is left
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	wantBoot(t, s, "boot-1", false)

	m.boot(t, "boot-2")
	ctx, stop := context.WithCancel(t.Context())
	r := testkit.Value(bootlease.NewReporter(bootlease.ReporterConfig{
		Leases: leases(t, s, "cleat-boot"), Node: "node.a", Dir: m.dir, Root: m.root, Pause: time.Millisecond,
		IsUsed: func(context.Context) (bool, error) { stop(); return false, errors.New("no list") },
	}))(t)
	testkit.Must(t, r.Run(ctx))
	wantBoot(t, s, "boot-1", false)
}

// A report that reaches the API server after its sender attached a volume without
// it, or after its machine was restarted, is no evidence: it is late.
func TestReportInFlight(t *testing.T) {
	s := kubeapi.New(t, kubeapi.Leases())
	m := newMachine(t, machineID, productUUID)
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	m.boot(t, "boot-2")
	r := m.start(t, s, 10*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	s.Fail(func(verb string) kubeapi.Fault {
		if verb != "update" {
			return kubeapi.None
		}
		testkit.Must(t, r.Admit(t.Context()))
		stop()
		return kubeapi.Late
	})
	testkit.Must(t, r.Run(ctx))
	s.Fail(nil)
	last(t, s) // lets it arrive
	wantBoot(t, s, "boot-2", true)
	m.used.Store(true)
	testkit.Must(t, m.start(t, s, testkit.Timeout).Run(t.Context()))
	wantBoot(t, s, "boot-2", true)
}

func TestParseName(t *testing.T) {
	namespace, prefix, err := bootlease.ParseName("cleat-system/cleat-boot", "node.a")
	if err != nil || namespace != "cleat-system" || prefix != "cleat-boot" {
		t.Errorf("%s, %s, %v", namespace, prefix, err)
	}
	for text, want := range map[string]string{
		"": "NAMESPACE/PREFIX", "a": "NAMESPACE/PREFIX", "a/": "NAMESPACE/PREFIX", "a/b.c": "NAMESPACE/PREFIX", "A/b": "NAMESPACE/PREFIX", "a/b/c": "NAMESPACE/PREFIX",
	} {
		_, _, err := bootlease.ParseName(text, "")
		testkit.WantError(t, text, err, errs.Invalid, want)
	}
	for _, node := range []string{"Node", strings.Repeat("n", 254)} {
		_, _, err := bootlease.ParseName("a/b", node)
		testkit.WantError(t, node, err, errs.Invalid, "not a valid name of a Lease")
	}
}
