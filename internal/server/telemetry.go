package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// checkBound is how long all checks of one question may take together; a
// kubelet asks with one second by default, and then takes silence for "no".
const checkBound = 5 * time.Second

// Check says why something is not ready, nil when it is. It honours ctx.
type Check func(ctx context.Context) error

// Document returns one part of the status; it must fit into JSON.
type Document func(ctx context.Context) (any, error)

// Telemetry answers over HTTP: /metrics, /healthz (the process lives), /readyz
// (every check passes) and /status (a JSON document).
type Telemetry struct {
	logger  *slog.Logger
	metrics http.Handler
	http    *http.Server

	mu        sync.Mutex
	checks    map[string]Check
	status    map[string]Document
	listeners []net.Listener
}

// NewTelemetry makes a server for the metrics of a registry.
func NewTelemetry(g prometheus.Gatherer, logger *slog.Logger) *Telemetry {
	s := &Telemetry{logger: logger, checks: map[string]Check{}, status: map[string]Document{}}
	s.metrics = promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorLog: errorLog{logger}, ErrorHandling: promhttp.ContinueOnError})
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	return s
}

// errorLog lets promhttp report collectors that fail.
type errorLog struct{ logger *slog.Logger }

func (l errorLog) Println(v ...any) {
	l.logger.Warn("metrics are incomplete", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

// Check adds a condition of readiness; the same name again replaces it.
func (s *Telemetry) Check(name string, ready Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks[name] = ready
}

// Status adds a part to the status document; the same name again replaces it.
func (s *Telemetry) Status(name string, document Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[name] = document
}

// Listen binds the address: host:port, or the path of a UNIX socket with or
// without unix://. With an empty address nothing is served.
func (s *Telemetry) Listen(ctx context.Context, address string) error {
	path, isSocket, err := socketPath(address)
	switch {
	case err != nil:
		return fmt.Errorf("metrics address: %w", err)
	case address == "":
		return nil
	case isSocket:
		if err := s.ListenSocket(ctx, unixsock.Address{Path: path}); err != nil {
			return fmt.Errorf("metrics address: %w", err)
		}
	default:
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("metrics address %q: %w; write host:port, :port or the path of a socket", address, err)
		}
		s.add(l)
	}
	return nil
}

// ListenSocket binds a socket, also beside what Listen has bound.
func (s *Telemetry) ListenSocket(ctx context.Context, a unixsock.Address) error {
	l, err := unixsock.Listen(ctx, a)
	if err != nil {
		return err
	}
	s.add(l)
	return nil
}

// socketPath takes the path of a socket out of an address that is one.
func socketPath(address string) (path string, isSocket bool, err error) {
	if !strings.HasPrefix(address, "/") && !strings.HasPrefix(address, "unix:") {
		return "", false, nil
	}
	path, err = unixsock.ParseEndpoint(address)
	return path, true, err
}

func (s *Telemetry) add(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	s.logger.Info("metrics are served", "address", l.Addr().String())
}

// Addr returns where the first of them listens, nil when nothing is served.
func (s *Telemetry) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.listeners) == 0 {
		return nil
	}
	return s.listeners[0].Addr()
}

// Serve answers on all addresses until Stop, or until ctx ends.
func (s *Telemetry) Serve(ctx context.Context) error {
	s.mu.Lock()
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	unhook := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer unhook()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.http.Serve(l) }()
	}
	var all error
	for range listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			all = errors.Join(all, fmt.Errorf("serve metrics: %w", err), s.http.Close()) // the others end too
		}
	}
	return all
}

// Stop takes no more questions and waits for the answers under way; what has
// not ended with ctx is cut off.
func (s *Telemetry) Stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners { // of a server that never served
		if closed := l.Close(); !errors.Is(closed, net.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}
	return err
}

// Handler returns what answers, for use in another HTTP server.
func (s *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.answerReady)
	mux.HandleFunc("GET /status", s.answerStatus)
	return mux
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready bool `json:"ready"`
	// Checks holds "ok" or the reason for each.
	Checks map[string]string `json:"checks"`
}

func (s *Telemetry) answerReady(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	answer := readiness{Ready: true, Checks: make(map[string]string, len(s.checks))}
	checks := make(map[string]Check, len(s.checks))
	for name, check := range s.checks {
		checks[name] = check
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), checkBound)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, check := range checks {
		all.Go(func() {
			reason := "ok"
			err := safely(func() error { return check(ctx) })
			if err != nil {
				reason = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			answer.Checks[name] = reason
			answer.Ready = answer.Ready && err == nil
		})
	}
	all.Wait()
	code := http.StatusOK
	if !answer.Ready {
		code = http.StatusServiceUnavailable
	}
	s.writeJSON(w, code, answer)
}

func (s *Telemetry) answerStatus(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	parts := make(map[string]Document, len(s.status))
	for name, document := range s.status {
		parts[name] = document
	}
	s.mu.Unlock()
	answer := make(map[string]any, len(parts))
	for name, document := range parts {
		var part any
		err := safely(func() (err error) { part, err = document(r.Context()); return err })
		if err != nil {
			part = map[string]string{"error": err.Error()}
		}
		answer[name] = part
	}
	s.writeJSON(w, http.StatusOK, answer)
}

// safely turns a panic into an error: a check that fails in an unexpected way
// is not ready, but must not take the program with it.
func safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("it failed unexpectedly; the log may say more")
		}
	}()
	return f()
}

func (s *Telemetry) writeJSON(w http.ResponseWriter, code int, value any) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		s.logger.Error("a status does not fit into JSON", "error", err)
		http.Error(w, "the status does not fit into JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}
