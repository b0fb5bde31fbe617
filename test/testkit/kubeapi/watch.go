package kubeapi

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// watches are guarded by the server's lock.
type watches struct {
	history []event
	oldest  int           // version from which a watch can start
	more    chan struct{} // closed on each event
	end     chan struct{} // closed to end them
	held    bool
}

// event is a change, or a bookmark.
type event struct {
	version int
	kind    string
	object  Object
}

func newWatches() watches { return watches{more: make(chan struct{}), end: make(chan struct{})} }

func (w *watches) send(events ...event) {
	w.history = append(w.history, events...)
	close(w.more)
	w.more = make(chan struct{})
}

// EndWatches ends those that are open.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.end)
	s.end = make(chan struct{})
}

// ExpireVersions makes watches from earlier versions fail with 410.
func (s *Server) ExpireVersions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest, s.history = s.version, nil
}

// HoldEvents suspends the events of open watches.
func (s *Server) HoldEvents(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = on
	s.send()
}

// Bookmark sends the current version to watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record("BOOKMARK", Object{APIVersion: s.resource.APIVersion, Kind: s.resource.Kind, Metadata: map[string]any{}})
}

func (s *Server) since(version int) (events []event, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.history {
		if e.version > version && !s.held {
			events = append(events, e)
		}
	}
	return events, s.more
}

// watch begins with the present objects if the request has no version.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	version := r.URL.Query().Get("resourceVersion")
	from, err := strconv.Atoi(cmp.Or(version, "0"))
	seconds, err2 := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil || err2 != nil {
		failure(http.StatusBadRequest, "BadRequest", "resourceVersion or timeoutSeconds").send(w)
		return
	}
	s.mu.Lock()
	var present []Object
	if version == "" {
		from, present = s.version, slices.Collect(maps.Values(s.objects))
	}
	expired, ended := from < s.oldest, s.end
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	stream := json.NewEncoder(w)
	if expired { // in the stream, like the real server
		_ = stream.Encode(map[string]any{"type": "ERROR", "object": failure(http.StatusGone, "Expired", "too old resource version").body})
		return
	}
	for _, o := range present {
		if selected(r, o) {
			_ = stream.Encode(map[string]any{"type": "ADDED", "object": o})
		}
	}
	timeout := time.After(time.Duration(seconds) * time.Second)
	for {
		events, more := s.since(from)
		for _, e := range events {
			from = e.version
			if e.kind == "BOOKMARK" || selected(r, e.object) {
				_ = stream.Encode(map[string]any{"type": e.kind, "object": e.object})
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
