package kubeapi

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/testkit"
)

// maxData is the limit of the API server for all data of a ConfigMap.
const maxData = 1 << 20

// answer is the status and body of a response.
type answer struct {
	code int
	body any
}

func failure(code int, reason, message string) answer {
	return answer{code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code}}
}

func (a answer) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.code)
	_ = json.NewEncoder(w).Encode(a.body)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	verb, name := s.verb(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.mu.Lock()
	s.counts[verb]++
	fault := None
	if s.fault != nil {
		fault = s.fault(verb)
	}
	if s.late != nil {
		s.late()
		s.late = nil
	}
	var a answer
	switch fault {
	case Changed:
		if _, exists := s.objects[name]; exists {
			s.change(name, func(o *Object) { o.Metadata["labels"] = map[string]any{"version": fmt.Sprint(s.version)} })
		}
		a = s.apply(r, verb, name, body)
	case None, Lost, Dropped:
		a = s.apply(r, verb, name, body)
	case Late:
		s.late = func() { s.apply(r, verb, name, body) }
	}
	s.mu.Unlock()
	switch fault {
	case Hung:
		<-r.Context().Done()
		return
	case Dropped, Late:
		panic(http.ErrAbortHandler)
	case Conflict:
		a = failure(http.StatusConflict, "Conflict", "the object has been modified")
	case Failed, Lost:
		w.Header().Set("Retry-After", "0")
		a = failure(http.StatusServiceUnavailable, "ServiceUnavailable", "retry")
	}
	if verb == "watch" && a.code == http.StatusOK {
		s.watch(w, r)
		return
	}
	a.send(w)
}

func (s *Server) apply(r *http.Request, verb, name string, body []byte) answer {
	old, exists := s.objects[name]
	switch {
	case r.Header.Get("Authorization") != "Bearer "+testkit.KubeToken:
		return failure(http.StatusUnauthorized, "Unauthorized", "no token")
	case s.refuse != 0:
		return failure(s.refuse, "", "refused by the test")
	case !strings.HasPrefix(r.URL.Path, s.resource.root):
		return failure(http.StatusNotFound, "NotFound", "not found: "+r.URL.Path)
	case verb == "watch":
		return answer{code: http.StatusOK}
	case verb == "list":
		return answer{http.StatusOK, s.list(r)}
	case verb == "create":
		return s.put(r, "", body)
	case !exists:
		return failure(http.StatusNotFound, "NotFound", fmt.Sprintf("%q not found", name))
	case verb == "get":
		return answer{http.StatusOK, old}
	case verb == "update":
		return s.put(r, name, body)
	}
	return s.patchStatus(r, name, old, body)
}

func (s *Server) list(r *http.Request) any {
	items := []any{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if selected(r, s.objects[name]) {
			items = append(items, s.objects[name])
		}
	}
	return map[string]any{
		"apiVersion": s.resource.APIVersion, "kind": s.resource.Kind + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	}
}

// selected knows selectors of one name, and of one label.
func selected(r *http.Request, o Object) bool {
	field := r.URL.Query().Get("fieldSelector")
	label, value, _ := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
	labels, _ := o.Metadata["labels"].(map[string]any)
	return (field == "" || field == fmt.Sprint("metadata.name=", o.Metadata["name"])) && (label == "" || labels[label] == value)
}

// put creates an object, or updates one that has a name.
func (s *Server) put(r *http.Request, name string, body []byte) answer {
	var sent Object
	if err := json.Unmarshal(body, &sent); err != nil || r.Header.Get("Content-Type") != "application/json" {
		return failure(http.StatusBadRequest, "BadRequest", "not a JSON document")
	}
	size := 0
	for _, value := range sent.BinaryData {
		size += len(value)
	}
	code := http.StatusOK
	if name == "" {
		code = http.StatusCreated
		name, _ = sent.Metadata["name"].(string)
	}
	old, exists := s.objects[name]
	switch {
	case size > maxData:
		return failure(http.StatusUnprocessableEntity, "Invalid", "Too long: must have at most 1048576 bytes")
	case code == http.StatusCreated && exists:
		return failure(http.StatusConflict, "AlreadyExists", fmt.Sprintf("%q already exists", name))
	case code == http.StatusOK && sent.Metadata["resourceVersion"] != old.Metadata["resourceVersion"]:
		return failure(http.StatusConflict, "Conflict", "the object has been modified; please apply your changes to the latest version and try again")
	}
	return answer{code, s.change(name, func(o *Object) { *o = sent })}
}

// patchStatus merges the status.
func (s *Server) patchStatus(r *http.Request, name string, old Object, body []byte) answer {
	var p struct {
		Metadata struct{ UID string }
		Status   map[string]any
	}
	switch err := json.Unmarshal(body, &p); {
	case err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" || !strings.HasSuffix(r.URL.Path, "/status"):
		return failure(http.StatusBadRequest, "BadRequest", "no merge patch of the status")
	case p.Metadata.UID != "" && p.Metadata.UID != old.Metadata["uid"]:
		return failure(http.StatusConflict, "Conflict", "Precondition failed: UID in precondition: "+p.Metadata.UID)
	}
	merged := map[string]any{}
	maps.Copy(merged, old.Status)
	maps.Copy(merged, p.Status)
	maps.DeleteFunc(merged, func(_ string, value any) bool { return value == nil })
	if equal(merged, old.Status) {
		return answer{http.StatusOK, old}
	}
	return answer{http.StatusOK, s.change(name, func(o *Object) { o.Status = merged })}
}
