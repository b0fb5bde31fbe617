package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// checkBound limits all checks of a request. A kubelet's probe fails after one
// second by default.
const checkBound = 5 * time.Second

// telemetry serves /metrics, /healthz (the process is alive), /readyz (all
// checks pass) and /status (JSON).
type telemetry struct {
	logger  *slog.Logger
	metrics http.Handler
	http    *http.Server

	listeners []net.Listener // set before serve

	mu     sync.Mutex // of the rest
	only   string     // the only check that counts, unless it is empty
	checks map[string]func(context.Context) error
	status map[string]func(context.Context) (any, error)
}

func newTelemetry(g prometheus.Gatherer, logger *slog.Logger) *telemetry {
	s := &telemetry{logger: logger, checks: map[string]func(context.Context) error{}, status: map[string]func(context.Context) (any, error){}}
	s.metrics = promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError})
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	return s
}

// Check adds a check of /readyz: ready returns why it fails.
func (s *telemetry) Check(name string, ready func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks[name] = ready
}

// CheckOnly makes /readyz depend on one check, with "" on all again: a process that waits
// for its turn is ready although it serves nothing.
func (s *telemetry) CheckOnly(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.only = name
}

// Status adds a field to /status, or replaces it.
func (s *telemetry) Status(name string, document func(context.Context) (any, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[name] = document
}

// listen binds host:port, or a UNIX socket with or without unix://. An empty
// address disables it.
func (s *telemetry) listen(ctx context.Context, address string) error {
	path, isSocket, err := socketPath(address)
	switch {
	case err != nil:
		return fmt.Errorf("metrics address: %w", err)
	case address == "":
		return nil
	case isSocket:
		if err := s.listenSocket(ctx, unixsock.Address{Path: path}); err != nil {
			return fmt.Errorf("metrics address: %w", err)
		}
	default:
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("metrics address %q: %w; use host:port, :port or the path of a socket", address, err)
		}
		s.add(l)
	}
	return nil
}

func (s *telemetry) listenSocket(ctx context.Context, a unixsock.Address) error {
	l, err := unixsock.ListenLasting(ctx, a)
	if err != nil {
		return err
	}
	s.add(l)
	return nil
}

// listenStatus creates the directory if it is missing.
func (s *telemetry) listenStatus(ctx context.Context, path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.listenSocket(ctx, unixsock.Address{Path: path, SharedDir: true, AnyLength: true})
}

// socketPath returns the path of a UNIX socket.
func socketPath(address string) (path string, isSocket bool, err error) {
	if !strings.HasPrefix(address, "/") && !strings.HasPrefix(address, "unix:") {
		return "", false, nil
	}
	path, err = unixsock.ParseEndpoint(address)
	return path, true, err
}

func (s *telemetry) add(l net.Listener) {
	s.listeners = append(s.listeners, l)
	s.logger.Info("serving metrics", "address", l.Addr().String())
}

// serve serves until stop, or until ctx ends.
func (s *telemetry) serve(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer unhook()
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() {
			ended <- restoring(ctx, s.logger, l, func() error { return s.http.Serve(l) })
		}()
	}
	var all error
	for range s.listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			all = errors.Join(all, fmt.Errorf("serve metrics: %w", err), s.http.Close()) // ends the other listeners
		}
	}
	return all
}

// stop waits for in-flight requests until ctx ends.
func (s *telemetry) stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	for _, l := range s.listeners { // in case serve was never called
		if closed := l.Close(); !errors.Is(closed, net.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}
	return err
}

func (s *telemetry) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.answerReady)
	mux.HandleFunc("GET /status", s.answerStatus)
	return mux
}

type readiness struct {
	Ready bool `json:"ready"`
	// Checks are "ok" or the reason.
	Checks map[string]string `json:"checks"`
}

func (s *telemetry) answerReady(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	checks := maps.Clone(s.checks)
	maps.DeleteFunc(checks, func(name string, _ func(context.Context) error) bool { return s.only != "" && name != s.only })
	s.mu.Unlock()
	answer := readiness{Ready: true, Checks: make(map[string]string, len(checks))}
	ctx, cancel := context.WithTimeout(r.Context(), checkBound)
	defer cancel()
	var mu sync.Mutex // of answer
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

func (s *telemetry) answerStatus(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status := maps.Clone(s.status)
	s.mu.Unlock()
	answer := make(map[string]any, len(status))
	for name, document := range status {
		var part any
		err := safely(func() (err error) { part, err = document(r.Context()); return err })
		if err != nil {
			part = map[string]string{"error": err.Error()}
		}
		answer[name] = part
	}
	s.writeJSON(w, http.StatusOK, answer)
}

func safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("unexpected failure, see the log")
		}
	}()
	return f()
}

func (s *telemetry) writeJSON(w http.ResponseWriter, code int, value any) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		s.logger.Error("status encoding failed", "err", err)
		http.Error(w, "the status cannot be encoded as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// maxAnswer in bytes.
const maxAnswer = 16 << 20

// Ask queries a JSON document, such as /status or /readyz, at --metrics-address
// or a status socket. A failed /readyz is not an error.
func Ask(ctx context.Context, address, path string, answer any) error {
	socket, isSocket, err := socketPath(address)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if isSocket {
			return unixsock.Dial(ctx, socket)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cleat"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read %s from %s: %w", path, address, err)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s of %s returned %s without the expected document: %w", path, address, response.Status, err)
	}
	return nil
}
