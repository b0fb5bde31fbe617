// Package kubeapi is a fake API server for the objects of one resource, with
// watches and fault injection.
package kubeapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Resource is what a server has, in one namespace.
type Resource struct{ APIVersion, Kind, Namespace, root string }

// ConfigMaps are those of a namespace.
func ConfigMaps() Resource {
	return Resource{"v1", "ConfigMap", "cleat-system", "/api/v1/namespaces/cleat-system/configmaps"}
}

// Leases are those of a namespace.
func Leases() Resource {
	const version = "coordination.k8s.io/v1"
	return Resource{version, "Lease", "cleat-system", "/apis/" + version + "/namespaces/cleat-system/leases"}
}

// NodeStates are the SriovNetworkNodeStates.
func NodeStates() Resource {
	const namespace, version = "sriov-network-operator", "sriovnetwork.openshift.io/v1"
	return Resource{version, "SriovNetworkNodeState", namespace, "/apis/" + version + "/namespaces/" + namespace + "/sriovnetworknodestates"}
}

// Object has the fields of all resources.
type Object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]any    `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	Spec       map[string]any    `json:"spec,omitempty"`
	Status     map[string]any    `json:"status,omitempty"`
}

// Fault is what happens to one request.
type Fault int

const (
	// None: the request is served.
	None Fault = iota
	// Changed: another client labels the object first.
	Changed
	// Conflict: nothing is done, and the answer is a conflict.
	Conflict
	// Failed: nothing is done, and the answer asks for a repeat.
	Failed
	// Lost: the request is served, but the answer is an error that asks for a
	// repeat.
	Lost
	// Dropped: the request is served, but the connection ends without answer.
	Dropped
	// Late: the connection ends, and the request is served before the next one.
	Late
	// Hung: nothing is done, and there is no answer.
	Hung
)

// Server is a fake API server. Methods are safe for concurrent use.
type Server struct {
	http     *httptest.Server
	resource Resource

	mu      sync.Mutex
	version int
	objects map[string]Object // not changed in place
	late    func()
	fault   func(verb string) Fault
	refuse  int // HTTP status; 0: serve
	counts  map[string]int
	watches
}

// New returns a server for the test's duration.
func New(t testing.TB, of Resource) *Server {
	t.Helper()
	s := &Server{resource: of, objects: map[string]Object{}, version: 100, counts: map[string]int{}, watches: newWatches()}
	s.http = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.EndWatches()
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// Kubeconfig writes a kubeconfig and returns its path.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	return testkit.WriteKubeconfig(t, s.http)
}

// Fail calls fault for each request; nil ends that.
func (s *Server) Fail(fault func(verb string) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Refuse answers with an HTTP status; 0 serves normally.
func (s *Server) Refuse(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = code
}

// Count returns the number of requests with a verb: get, list, watch, create,
// update, patch.
func (s *Server) Count(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[verb]
}

// Get returns a copy of an object.
func (s *Server) Get(name string) (o Object, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, exists = s.objects[name]
	return clone(o), exists
}

// Change changes an object, or creates it.
func (s *Server) Change(name string, change func(*Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(name, change)
}

// SetSpec changes the spec of an object, or creates it. Another spec increments
// the generation.
func (s *Server) SetSpec(name string, spec map[string]any) {
	s.Change(name, func(o *Object) { o.Spec = spec })
}

// SetStatus replaces the status.
func (s *Server) SetStatus(name string, status map[string]any) {
	s.Change(name, func(o *Object) { o.Status = status })
}

// Delete removes an object.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, exists := s.objects[name]; exists {
		delete(s.objects, name)
		s.record("DELETED", clone(o))
	}
}

func (s *Server) change(name string, change func(*Object)) Object {
	old, exists := s.objects[name]
	o, kind := clone(old), "MODIFIED"
	if !exists {
		kind, o = "ADDED", Object{
			APIVersion: s.resource.APIVersion, Kind: s.resource.Kind, BinaryData: map[string][]byte{},
			Metadata: map[string]any{"namespace": s.resource.Namespace, "name": name, "uid": "uid-" + strconv.Itoa(s.version+1)},
		}
	}
	uid, generation := o.Metadata["uid"], o.Metadata["generation"]
	change(&o)
	o.Metadata["uid"] = uid
	if !equal(old.Spec, o.Spec) {
		before, _ := generation.(float64)
		o.Metadata["generation"] = before + 1
	}
	s.objects[name] = s.record(kind, clone(o))
	return s.objects[name]
}

// record gives a changed object its version, and reports it to watches.
func (s *Server) record(kind string, o Object) Object {
	s.version++
	o.Metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.send(event{s.version, kind, o})
	return o
}

// verb returns what a request asks for, and of which object.
func (s *Server) verb(r *http.Request) (verb, name string) {
	name = strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, s.resource.root), "/")
	switch {
	case r.Method == http.MethodPost:
		return "create", name
	case r.Method == http.MethodPut:
		return "update", name
	case r.Method == http.MethodPatch:
		return "patch", strings.TrimSuffix(name, "/status")
	case name != "":
		return "get", name
	case r.URL.Query().Get("watch") == "true":
		return "watch", ""
	}
	return "list", ""
}

// clone returns a copy as a client decodes it.
func clone(o Object) (copied Object) {
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, &copied)
	}
	if err != nil {
		panic(err)
	}
	return copied
}

func equal(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}
