package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/takeover/plan"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// history is what the API server has accepted for a site's node and remediation,
// in the order of its versions, which all objects share.
type history struct {
	mu     sync.Mutex
	events []event
}

type event struct {
	version     int64
	node        *corev1.Node          // one of the two
	remediation *takeover.Remediation // nil with node nil: it was deleted
}

// watch records from now on.
func (s *site) watch() *history {
	s.t.Helper()
	h := &history{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.t.Cleanup(func() { cancel(); running.Wait() })
	for _, of := range []struct {
		resource        schema.GroupVersionResource
		namespace, name string
	}{{nodes, "", s.node()}, {takeover.Resource, s.namespace, s.node()}} {
		objects := s.client.Resource(of.resource).Namespace(of.namespace)
		only := metav1.ListOptions{FieldSelector: "metadata.name=" + of.name}
		version := testkit.Value(objects.List(ctx, only))(s.t).GetResourceVersion()
		running.Go(func() {
			for ctx.Err() == nil {
				version = h.follow(ctx, objects, only, version)
			}
		})
	}
	return h
}

// follow watches from a version until the watch ends, as with the API server, and
// returns from where to go on. An API server that was started again has no earlier
// versions: what it has then is added.
func (h *history) follow(ctx context.Context, objects dynamic.ResourceInterface, only metav1.ListOptions, version string) string {
	from := only
	from.ResourceVersion = version
	w, err := objects.Watch(ctx, from)
	if err == nil {
		defer w.Stop()
		for e := range w.ResultChan() {
			if u, is := e.Object.(*unstructured.Unstructured); is && e.Type != watch.Error {
				h.add(u)
				version = u.GetResourceVersion()
			} else {
				err = apierrors.FromObject(e.Object)
			}
		}
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		if list, err := objects.List(ctx, only); err == nil {
			for i := range list.Items {
				h.add(&list.Items[i])
			}
			return list.GetResourceVersion()
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
	return version
}

func (h *history) add(u *unstructured.Unstructured) {
	version, _ := strconv.ParseInt(u.GetResourceVersion(), 10, 64)
	e := event{version: version}
	if u.GetKind() == "Node" {
		e.node, _ = kubeobject.Convert[corev1.Node](u)
	} else if text, err := u.MarshalJSON(); err == nil {
		e.remediation = new(takeover.Remediation)
		_ = json.Unmarshal(text, e.remediation)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

func (h *history) has(version string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.events, func(e event) bool { return fmt.Sprint(e.version) == version })
}

// awaitNewest waits until the history has the newest version of each object: a watch
// can be later than a request.
func (s *site) awaitNewest(h *history) {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "the history has the newest versions", func() error {
		versions := []string{s.nodeObject().ResourceVersion}
		if r := s.remediation(); r != nil { // otherwise it is released, which takes longer
			versions = append(versions, r.ResourceVersion)
		}
		for _, version := range versions {
			if !h.has(version) {
				return fmt.Errorf("version %s is missing", version)
			}
		}
		return nil
	})
}

// isReached reports whether the newest remediation has the reason. It makes no request.
func (h *history) isReached(reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range slices.Backward(h.events) {
		if e.remediation != nil {
			return strings.HasPrefix(reasonOf(e.remediation), reason+":")
		}
	}
	return false
}

// check judges a history with the records of writers.
func (s *site) check(h *history, writers ...*storage.Writer) {
	s.t.Helper()
	accepted := make([]time.Time, len(writers))
	for i, w := range writers {
		accepted[i] = s.lastOf(w)
	}
	s.judge(h, accepted...)
}

// lastOf returns when the storage has accepted a writer's last write.
func (s *site) lastOf(w *storage.Writer) time.Time {
	s.t.Helper()
	all := testkit.Value(s.records.Read())(s.t)[w.ID]
	if len(all) == 0 {
		s.t.Fatalf("writer %d has no record", w.ID)
	}
	return all[len(all)-1].At
}

// judge judges a history with when the storage has accepted the last write of each
// writer on the lost node:
//
//	no write of the lost node was accepted after the certificate
//	no taint before the certificate
//	no certificate before the intent it names
//	no release without another boot of the machine
func (s *site) judge(h *history, accepted ...time.Time) {
	s.t.Helper()
	s.awaitNewest(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	var certified, intended, tainted, released int64
	var certificate *plan.Certificate
	first := func(at *int64, version int64) {
		if *at == 0 || version < *at {
			*at = version
		}
	}
	for _, e := range h.events {
		switch {
		case e.node != nil:
			if taintOf(e.node) != "" {
				first(&tainted, e.version)
			}
		case e.remediation != nil:
			status := e.remediation.Status
			if status.Intent != nil {
				first(&intended, e.version)
			}
			if status.Certificate != nil {
				if first(&certified, e.version); certificate == nil {
					certificate = status.Certificate
				}
				if status.Intent == nil || status.Certificate.Intent != status.Intent.Digest {
					s.t.Errorf("version %d has a certificate of another intent", e.version)
				}
			}
			if status.Release != nil {
				first(&released, e.version)
			}
		}
	}
	if certificate == nil || tainted == 0 {
		s.t.Fatalf("the history has no certificate or no taint: %d events", len(h.events))
	}
	if !(intended < certified && certified < tainted) {
		s.t.Errorf("intent at version %d, certificate at %d, taint at %d: want this order", intended, certified, tainted)
	}
	if released != 0 && released < tainted {
		s.t.Errorf("released at version %d, before the taint at %d", released, tainted)
	}
	for i, last := range accepted {
		if !last.Before(certificate.At) {
			s.t.Errorf("writer %d: a write was accepted %s after the certificate", i, last.Sub(certificate.At))
		}
	}
}

func taintOf(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if t.Key == "node.kubernetes.io/out-of-service" {
			return t.Value
		}
	}
	return ""
}

// A lost node is taken over with a certificate, returns after a reboot, and is as
// before.
func TestTakeover(t *testing.T) {
	s := newSite(t)
	h, w := s.watch(), s.writer(1)
	s.controller()
	testkit.Value(s.run("start"))(t)
	s.awaitReason("TakenOver")
	took := s.remediation().Status
	if left := s.podsLeft(); len(left) > 0 {
		t.Errorf("pods are left: %v", left)
	}
	if n := s.nodeObject(); !n.Spec.Unschedulable || !strings.HasPrefix(taintOf(n), "cleat-") {
		t.Errorf("the node is not cordoned and tainted: %+v", n.Spec)
	}
	show := testkit.Value(s.run(append([]string{"show", "--coverage", s.coverage}, tlsFlags(s.authority.Files(t, nil, "admin"))...)...))(t)
	for _, want := range []string{took.Certificate.Digest, s.lostAddr.String(), "port 4420", s.name + "-net", "all"} {
		if !strings.Contains(show, want) {
			t.Errorf("show has no %q:\n%s", want, show)
		}
	}

	s.delete() // as NodeHealthCheck does when the node is Ready: the fence stays
	s.awaitReason("AwaitingReturn")
	s.reboot()
	testkit.Eventually(t, "the remediation is gone", func() bool { return s.remediation() == nil })
	s.check(h, w)
	s.checkReturned()
	testkit.Value(s.run("start"))(t) // an object of the same name
	s.awaitReason("NodeReady")
}

// The controller is killed at every step, and another one continues.
func TestKilledAtEachStep(t *testing.T) {
	points := testkit.CrashPoints(t, "takeover")
	if len(points) != 3 {
		t.Fatalf("the crash points are %v", points)
	}
	for _, point := range soak.Pick(1, points) {
		t.Run(point, func(t *testing.T) {
			s := newSite(t)
			h, w := s.watch(), s.writer(1)
			testkit.Value(s.run("start"))(t)
			kills := s.untilReason(point, "TakenOver")
			s.reboot()
			kills += s.untilReason(point, "Released")
			s.check(h, w)
			s.checkReturned()
			if kills < 4 {
				t.Errorf("killed only %d times", kills)
			}
			t.Logf("killed %d times", kills)
		})
	}
}

// untilReason runs controllers until the reason is reached, and returns how many
// were killed: the first one at its first step of the kind, the second one at its
// second, and so on. A new leader repeats the first one, its claim of the node.
func (s *site) untilReason(point, want string) (kills int) {
	s.t.Helper()
	isReached := func() bool { return strings.HasPrefix(s.reason(), want+":") }
	for !isReached() {
		if kills > 20 {
			s.t.Fatalf("the reason is %q after %d kills", s.reason(), kills)
		}
		p := s.controller(fmt.Sprintf("CLEAT_CRASHPOINT=%s=%d", point, kills+1))
		testkit.Eventually(s.t, "the controller is killed, or done", func() bool {
			select {
			case <-p.Done():
				kills++
				return true
			default:
				return isReached()
			}
		})
		p.Kill()
	}
	return kills
}

// checkReturned fails unless node and storage are as before the takeover.
func (s *site) checkReturned() {
	s.t.Helper()
	s.checkNode()
	if held := testkit.Value(s.service.List(s.t.Context(), nil))(s.t); len(held) > 0 {
		s.t.Errorf("fences are left: %v", held)
	}
	s.writer(99) // has access again
}

func (s *site) checkNode() {
	s.t.Helper()
	if n := s.nodeObject(); n.Spec.Unschedulable || taintOf(n) != "" {
		s.t.Errorf("the node is not as before: %+v", n.Spec)
	}
}

// A leader that was stopped for longer than its Lease changes nothing when it
// continues: the next one has claimed the node.
func TestDeposedLeader(t *testing.T) {
	t.Parallel() // the second leader waits for the Lease
	s := newSite(t)
	s.isolate()
	s.leaseDuration = 15 * time.Second // as it is by default: the first leader keeps it until it is stopped
	h, w := s.watch(), s.writer(1)
	testkit.Must(t, s.service.Kill()) // so that the takeover stays before the certificate
	first := s.controller()
	testkit.Value(takeover.Start(t.Context(), s.client, s.namespace, s.node()))(t)
	testkit.Eventually(t, "the first leader has claimed the node", func() bool { return s.nodeObject().Spec.Unschedulable })
	testkit.Must(t, first.Signal(unix.SIGSTOP))
	before := s.claimTerm()
	s.controller()
	testkit.Eventually(t, "the second leader has claimed the node", func() bool { return s.claimTerm() > before })
	after := s.claimTerm()
	testkit.Must(t, first.Signal(unix.SIGCONT))
	first.WaitFor(t, "not leading any more")
	if now := s.claimTerm(); now < after {
		t.Errorf("the deposed leader has changed the claim of term %d to term %d", after, now)
	}
	s.serve()
	s.awaitReason("TakenOver")
	s.check(h, w)
}

// claimTerm is that of the leader that has claimed the lost node last.
func (s *site) claimTerm() int64 {
	s.t.Helper()
	var claim plan.Claim
	testkit.Must(s.t, json.Unmarshal([]byte(s.nodeObject().Annotations["remediation.cleat.dev/claim"]), &claim))
	return claim.Term
}

// What is not known blocks: nothing is fenced, tainted or deleted.
func TestBlocked(t *testing.T) {
	s := newSite(t)
	w := s.writer(1)
	coverage := s.coverageText()
	for _, c := range []struct{ reason, from, to string }{
		{"DriverNotConfigured", "- {driver: net.example.com, backend: storage}\n", ""},
		{"NoFenceService", "driver: net.example.com, backend: storage", "driver: net.example.com"},
		{"NoClientRecord", ", nodeAddresses: true", ""},
		{"AddressProtected", "maxConcurrent: 5", "protected: [{block: " + netip.PrefixFrom(s.lostAddr, 24).Masked().String() + ", owner: the test}]"},
		{"NodeExcluded", "maxConcurrent: 5", "excludedNodes: [" + s.node() + "]"},
		{"SourceUnavailable", s.endpoint, "127.0.0.1:1"},
	} {
		changed := strings.Replace(coverage, c.from, c.to, 1)
		if changed == coverage {
			t.Fatalf("%q is not in the coverage", c.from)
		}
		s.cover(changed)
		p := s.controller()
		testkit.Value(s.run("start"))(t)
		s.awaitReason(c.reason)
		p.Kill()
	}
	if n := s.nodeObject(); taintOf(n) != "" || len(s.podsLeft()) != 2 {
		t.Errorf("the node is tainted or lost its pods: %+v, %v", n.Spec.Taints, s.podsLeft())
	}
	if r := s.remediation(); r.Status.Intent != nil || r.Status.Certificate != nil {
		t.Errorf("something was fenced: %+v", r.Status)
	}
	testkit.Must(t, w.Await(testkit.Context(t), 20)) // writes on
	if _, err := s.run("release", "--off"); err == nil || !strings.Contains(err.Error(), "has fenced nothing") {
		t.Errorf("release of what was not fenced: %v", err)
	}
	s.delete()
	// A new Lease counts from 1, and the remediation has a later term.
	testkit.Must(t, s.client.Resource(leases).Namespace(namespace).Delete(t.Context(), "cleat-takeover", metav1.DeleteOptions{}))
	s.controller()
	testkit.Eventually(t, "the remediation is gone", func() bool { return s.remediation() == nil })
	if n := s.nodeObject(); n.Spec.Unschedulable {
		t.Errorf("the node is not as before: %+v", n.Spec)
	}
}

// An administrator confirms that the machine is off: the fence is lifted without a boot.
func TestReleaseByAdministrator(t *testing.T) {
	s := newSite(t)
	h, w := s.watch(), s.writer(1)
	s.controller()
	testkit.Value(s.run("start"))(t)
	s.awaitReason("TakenOver")
	if _, err := s.run("release"); err == nil || !strings.Contains(err.Error(), "--off is required") {
		t.Errorf("release without a confirmation: %v", err)
	}
	if _, err := s.run("release", "--off", "--dpu", "dpu-7"); err == nil || !strings.Contains(err.Error(), "no machine of this takeover") {
		t.Errorf("release of a DPU that is not recorded: %v", err)
	}
	testkit.Value(s.run("release", "--off"))(t)
	s.awaitReason("Released")
	s.check(h, w)
	s.checkReturned()
}

// place is a site with a storage and a backend of some kind.
type place interface {
	common() *site
	// write lets the lost node write until the test ends, and returns when the storage
	// has accepted its last write.
	write() (accepted func() time.Time)
	// restart kills the backend's service, if it runs, and starts it again; with a point
	// the new one is killed there, and the next call starts another one.
	restart(crashPoint ...string)
	reboot() // of the lost node
	checkReturned()
}

type kind struct {
	name string
	make func(testing.TB) place
	runs int // histories in CI
}

// kinds have 50 histories in CI, 8 of them in its part ceph.
var kinds = slices.Concat([]kind{
	{"filter", func(t testing.TB) place { return newSite(t) }, 21},
	{"spdk", func(t testing.TB) place { return newSPDKSite(t) }, 21},
}, cephKinds)

func (s *site) common() *site { return s }

func (s *site) write() (accepted func() time.Time) {
	w := s.writer(1)
	return func() time.Time { return s.lastOf(w) }
}

// Takeovers with faults at random: controllers are killed between any two steps or
// at any time, the backend's service too, answers of the API server are lost, and
// two controllers overlap.
func TestHistories(t *testing.T) {
	points := testkit.CrashPoints(t, "takeover")
	steps := slices.Concat(testkit.CrashPoints(t, "fence", "enforce"), testkit.CrashPoints(t, "engine", "ceph", "blocklist"))
	for _, kind := range kinds {
		runs := kind.runs
		if soak.Enabled {
			runs *= 20
		}
		for seed := range runs {
			t.Run(fmt.Sprint(kind.name, seed), func(t *testing.T) {
				t.Parallel() // most of the time controllers wait for the Lease of one that was killed
				random := rand.New(rand.NewPCG(uint64(seed), 41))
				p := kind.make(t)
				s := p.common()
				s.isolate()
				h, accepted, lossy := s.watch(), p.write(), s.proxied()
				testkit.Value(takeover.Start(t.Context(), s.client, s.namespace, s.node()))(t)
				disturb(p, h, random, lossy, points, steps, "TakenOver")
				if random.IntN(2) == 0 {
					p.restart() // which keeps the fence
				}
				p.reboot()
				disturb(p, h, random, lossy, points, steps, "Released")
				s.judge(h, accepted())
				p.checkReturned()
			})
		}
	}
}

// disturb injects up to five faults, then lets a controller reach the reason.
func disturb(p place, h *history, random *rand.Rand, lossy *proxy, points, steps []string, want string) {
	s := p.common()
	s.t.Helper()
	for range random.IntN(6) {
		if h.isReached(want) {
			return
		}
		fault := random.IntN(5)
		armed := crashAt([]string{fmt.Sprintf("%s=%d", points[random.IntN(len(points))], 1+random.IntN(6))})
		first := s.controller(armed...)
		switch fault {
		case 0: // only the controller
		case 1:
			p.restart()
		case 2:
			second := s.controller(armed...)
			defer second.Kill()
		case 3:
			of := rand.New(rand.NewPCG(random.Uint64(), 3))
			lossy.loseAnswers(func() bool { return of.IntN(3) == 0 })
		case 4: // at a step of a fence or its end
			p.restart(fmt.Sprintf("%s=%d", steps[random.IntN(len(steps))], 1+random.IntN(2)))
		}
		testkit.Eventually(s.t, "the controller is killed, or done", func() bool {
			select {
			case <-first.Done():
				return true
			default:
				return h.isReached(want) || random.IntN(100) == 0
			}
		})
		first.Kill()
		lossy.loseAnswers(nil)
		if fault == 4 {
			p.restart()
		}
	}
	last := s.controller()
	testkit.Eventually(s.t, "reason "+want, func() bool {
		if strings.Contains(last.Log.String(), "was not renewed in time") { // the machine is too slow for so short a Lease
			last.Kill()
			s.leaseDuration *= 2
			last = s.controller()
		}
		return h.isReached(want)
	})
	last.Kill()
}
