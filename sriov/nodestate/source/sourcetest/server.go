// Package sourcetest is a fake API server for SriovNetworkNodeStates, with
// fault injection.
package sourcetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Namespace is that of all objects.
const Namespace = "sriov-network-operator"

// Server is a fake API server. Methods are safe for concurrent use.
type Server struct {
	http *httptest.Server

	mu         sync.Mutex
	version    int
	oldest     int
	objects    map[string]map[string]any
	history    []change
	more       chan struct{} // closed on each change
	endWatches chan struct{} // closed to end them
	refuse     int           // HTTP status; 0: serve
	conflict   int           // patches that fail
	holdEvents bool
	hang       bool
	counts     map[string]int
}

type change struct {
	version int
	kind    string
	object  map[string]any
}

// New returns a server for the test's duration.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{objects: map[string]map[string]any{}, more: make(chan struct{}), endWatches: make(chan struct{}), version: 100, counts: map[string]int{}}
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
	path := filepath.Join(t.TempDir(), "kubeconfig")
	// clientcmd sends tokens over TLS only.
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {token: secret}}]
`, s.http.URL, base64.StdEncoding.EncodeToString(authority))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Put creates or updates an object: a changed spec increments the generation.
func (s *Server) Put(name string, spec map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.objects[name]
	n := clone(old)
	kind := "MODIFIED"
	if !there {
		kind = "ADDED"
		n = map[string]any{"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodeState", "metadata": map[string]any{
			"name": name, "namespace": Namespace, "uid": fmt.Sprintf("uid-%d", s.version+1), "generation": float64(0),
		}}
	}
	if !there || !jsonEqual(old["spec"], spec) {
		meta := n["metadata"].(map[string]any)
		meta["generation"] = meta["generation"].(float64) + 1
	}
	n["spec"] = spec
	s.record(kind, name, clone(n))
}

// SetStatus replaces the status.
func (s *Server) SetStatus(name string, status map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := clone(s.objects[name])
	n["status"] = status
	s.record("MODIFIED", name, clone(n))
}

// Delete removes an object.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record("DELETED", name, clone(s.objects[name]))
}

// Object returns a copy; nil if it does not exist.
func (s *Server) Object(name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return clone(s.objects[name])
}

func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.endWatches)
	s.endWatches = make(chan struct{})
}

// ExpireVersions makes watches from earlier versions fail with 410.
func (s *Server) ExpireVersions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest, s.history = s.version, nil
}

// Refuse answers with an HTTP status; 0 serves normally.
func (s *Server) Refuse(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = code
}

// Conflict fails the next n patches.
func (s *Server) Conflict(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conflict = n
}

// HoldEvents suspends the events of open watches.
func (s *Server) HoldEvents(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdEvents = on
	s.wake()
}

// Hang leaves requests without a response.
func (s *Server) Hang(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = on
}

// Count returns the number of requests: list, watch, patch.
func (s *Server) Count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[kind]
}

func (s *Server) record(kind, name string, object map[string]any) {
	s.version++
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	if kind == "DELETED" {
		delete(s.objects, name)
	} else {
		s.objects[name] = object
	}
	s.history = append(s.history, change{s.version, kind, clone(object)})
	s.wake()
}

func (s *Server) wake() {
	close(s.more)
	s.more = make(chan struct{})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	const root = "/apis/sriovnetwork.openshift.io/v1/namespaces/" + Namespace + "/sriovnetworknodestates"
	s.mu.Lock()
	refuse, hang := s.refuse, s.hang
	s.mu.Unlock()
	if hang {
		<-r.Context().Done()
		return
	}
	switch name, patch := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, root+"/"), "/status"); {
	case r.Header.Get("Authorization") != "Bearer secret":
		fail(w, http.StatusUnauthorized, "Unauthorized", "no token")
	case refuse != 0:
		fail(w, refuse, "InternalError", "refused by the test")
	case r.URL.Path == root && r.URL.Query().Get("watch") == "true":
		s.watch(w, r)
	case r.URL.Path == root:
		s.list(w, r)
	case patch && r.Method == http.MethodPatch:
		s.patch(w, r, name)
	case strings.HasPrefix(r.URL.Path, root+"/") && r.Method == http.MethodGet:
		s.get(w, name)
	default:
		fail(w, http.StatusNotFound, "NotFound", r.Method+" "+r.URL.Path)
	}
}

func selected(r *http.Request, name string) bool {
	field := r.URL.Query().Get("fieldSelector")
	return field == "" || field == "metadata.name="+name
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["list"]++
	items := []any{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if selected(r, name) {
			items = append(items, s.objects[name])
		}
	}
	answer(w, http.StatusOK, map[string]any{"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodeStateList",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

func (s *Server) get(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object, ok := s.objects[name]; ok {
		answer(w, http.StatusOK, object)
		return
	}
	fail(w, http.StatusNotFound, "NotFound", name)
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, err2 := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil || err2 != nil {
		fail(w, http.StatusBadRequest, "BadRequest", "resourceVersion or timeoutSeconds")
		return
	}
	s.mu.Lock()
	s.counts["watch"]++
	old, ended := from < s.oldest, s.endWatches
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	stream := json.NewEncoder(w)
	if old { // in the stream, like the real server
		_ = stream.Encode(map[string]any{"type": "ERROR", "object": status(http.StatusGone, "Expired", "too old resource version")})
		return
	}
	w.(http.Flusher).Flush()
	timeout := time.After(time.Duration(seconds) * time.Second)
	for {
		changes, more := s.since(from)
		for _, c := range changes {
			from = c.version
			if c.kind == "" {
				_ = stream.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodeState",
					"metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}}})
			} else if selected(r, c.object["metadata"].(map[string]any)["name"].(string)) {
				_ = stream.Encode(map[string]any{"type": c.kind, "object": c.object})
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-more:
		case <-ended:
			return
		case <-timeout:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// Bookmark sends the current version to watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.history = append(s.history, change{version: s.version})
	s.wake()
}

func (s *Server) since(version int) ([]change, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []change
	for _, c := range s.history {
		if c.version > version && !s.holdEvents {
			all = append(all, c)
		}
	}
	return all, s.more
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, name string) {
	var p struct {
		Metadata struct{ UID string }
		Status   map[string]any
	}
	err := json.NewDecoder(r.Body).Decode(&p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["patch"]++
	object, ok := s.objects[name]
	switch {
	case err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json":
		fail(w, http.StatusBadRequest, "BadRequest", "no merge patch")
	case !ok:
		fail(w, http.StatusNotFound, "NotFound", name)
	case s.conflict > 0:
		s.conflict--
		fail(w, http.StatusConflict, "Conflict", "the object has been modified")
	case p.Metadata.UID != "" && p.Metadata.UID != object["metadata"].(map[string]any)["uid"]:
		fail(w, http.StatusConflict, "Conflict", "Precondition failed: UID in precondition: "+p.Metadata.UID)
	default:
		n := clone(object)
		merged, _ := n["status"].(map[string]any)
		if merged == nil {
			merged = map[string]any{}
		}
		for key, value := range p.Status {
			if value == nil {
				delete(merged, key)
			} else {
				merged[key] = value
			}
		}
		n["status"] = merged
		if !jsonEqual(n, object) {
			s.record("MODIFIED", name, n)
		}
		answer(w, http.StatusOK, s.objects[name])
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func status(code int, reason, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, status(code, reason, message))
}

func clone(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var copied map[string]any
	if err := json.Unmarshal(text, &copied); err != nil {
		panic(err)
	}
	return copied
}

func jsonEqual(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
