package takeover

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// Many nodes are lost at once (in make soak 30): never are more takeovers in progress
// than configured, all are taken over, and the API server gets a bounded number of
// requests.
func TestManyNodesLost(t *testing.T) {
	const limit = 3
	lost := 12
	if soak.Enabled {
		lost = 30
	}
	s := newSite(t)
	s.cover(strings.Replace(s.coverageText(), "maxConcurrent: 5", fmt.Sprintf("maxConcurrent: %d", limit), 1))
	var names []string
	for i := range lost {
		name := fmt.Sprintf("%s-%d", s.name, i)
		s.createNodes(name, netip.AddrFrom4([4]byte{10, 9, byte(100 + s.number%100), byte(2*i + 1)}))
		names = append(names, name+"-lost")
	}
	s.leaseDuration = 15 * time.Second // as it is by default: all of them are work for one leader
	p, progress := s.proxied(), s.watchProgress()
	for _, node := range names {
		testkit.Value(takeover.Start(t.Context(), s.client, namespace, node))(t)
	}
	began := time.Now()
	controller := s.controller()
	for left := names; len(left) > 0; { // each one within the time that tests wait
		testkit.Eventually(t, fmt.Sprintf("one of %v is taken over", left), func() bool {
			before := len(left)
			left = s.notTakenOver(left)
			return len(left) < before
		})
	}
	took, requests := time.Since(began), p.take()
	t.Logf("%d takeovers, %d at a time, took %s, and %s", lost, limit, took, summary(requests))
	if got := progress(); got > limit {
		t.Errorf("%d takeovers were in progress at a time, want at most %d", got, limit)
	}
	// A pass lists the nodes once. A takeover has 9 passes of its own (term, finalizer,
	// claim, record, intent, fence, certificate, taint, pods), each at most twice.
	// Those that wait have some more, and each that is taken over one in 15 s at least.
	if lists := requests["GET nodes"]; lists > lost*(30+int(took/(15*time.Second))) {
		t.Errorf("nodes were listed %d times", lists)
	}
	if soak.Enabled {
		s.checkRest(p, lost)
	}
	controller.Kill()
}

// checkRest: remediations that wait for the return of their nodes cause next to no load.
func (s *site) checkRest(p *proxy, lost int) {
	s.t.Helper()
	const window = 45 * time.Second
	p.take()
	select {
	case <-time.After(window):
	case <-s.t.Context().Done():
	}
	requests := p.take()
	s.t.Logf("at rest, in %s: %s", window, summary(requests))
	if lists := requests["GET nodes"]; lists > 5*lost {
		s.t.Errorf("nodes were listed %d times in %s", lists, window)
	}
}

// watchProgress returns a function that returns how many takeovers were in progress
// at most at a time: an intent, and no success.
func (s *site) watchProgress() (most func() int) {
	s.t.Helper()
	objects := s.client.Resource(takeover.Resource).Namespace(namespace)
	list := testkit.Value(objects.List(s.t.Context(), metav1.ListOptions{}))(s.t)
	w := testkit.Value(objects.Watch(context.WithoutCancel(s.t.Context()), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(s.t)
	var running sync.WaitGroup
	s.t.Cleanup(func() { w.Stop(); running.Wait() })
	var mu sync.Mutex
	highest := 0
	running.Go(func() {
		inProgress := map[string]bool{}
		for e := range w.ResultChan() {
			u, is := e.Object.(*unstructured.Unstructured)
			if !is {
				continue
			}
			_, fenced, _ := unstructured.NestedMap(u.Object, "status", "intent")
			if inProgress[u.GetName()] = fenced && conditionOf(u, "Succeeded") != "True"; !inProgress[u.GetName()] {
				delete(inProgress, u.GetName())
			}
			mu.Lock()
			highest = max(highest, len(inProgress))
			mu.Unlock()
		}
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return highest
	}
}

// conditionOf returns the status of a condition.
func conditionOf(u *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, one := range all {
		if c, is := one.(map[string]any); is && c["type"] == kind {
			status, _ := c["status"].(string)
			return status
		}
	}
	return ""
}

// notTakenOver returns which of the nodes are not taken over.
func (s *site) notTakenOver(nodes []string) []string {
	s.t.Helper()
	list := testkit.Value(s.client.Resource(takeover.Resource).Namespace(namespace).List(testkit.Context(s.t), metav1.ListOptions{}))(s.t)
	left := slices.Clone(nodes)
	for i := range list.Items {
		if u := &list.Items[i]; conditionOf(u, "Succeeded") == "True" {
			left = slices.DeleteFunc(left, func(name string) bool { return name == u.GetName() })
		}
	}
	return left
}

func summary(requests map[string]int) string {
	total, text := 0, ""
	for _, key := range slices.Sorted(maps.Keys(requests)) {
		total += requests[key]
		text += fmt.Sprintf(", %s %d", key, requests[key])
	}
	return fmt.Sprintf("%d requests%s", total, text)
}
