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
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// checkBound limits all checks of one request. A kubelet's probe times out
// after one second by default, and then counts as failed.
const checkBound = 5 * time.Second

// telemetry serves HTTP: /metrics, /healthz (the process is alive), /readyz
// (all checks pass) and /status (a JSON document).
type telemetry struct {
	logger  *slog.Logger
	metrics http.Handler
	http    *http.Server

	// Set before serve.
	checks    map[string]func(context.Context) error
	status    map[string]func(context.Context) (any, error)
	listeners []net.Listener
}

// newTelemetry returns a server for the metrics of a registry.
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

// Check adds a check of /readyz: ready returns why the component is not ready.
func (s *telemetry) Check(name string, ready func(context.Context) error) {
	s.checks[name] = ready
}

// Status adds a field to the document of /status.
func (s *telemetry) Status(name string, document func(context.Context) (any, error)) {
	s.status[name] = document
}

// listen binds host:port, or the path of a UNIX socket with or without unix://.
// An empty address disables it.
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
	l, err := unixsock.Listen(ctx, a)
	if err != nil {
		return err
	}
	s.add(l)
	return nil
}

// socketPath returns the path of an address that is a UNIX socket.
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

// serve serves all listeners until stop, or until ctx ends.
func (s *telemetry) serve(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer unhook()
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { ended <- s.http.Serve(l) }()
	}
	var all error
	for range s.listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			all = errors.Join(all, fmt.Errorf("serve metrics: %w", err), s.http.Close()) // end the other listeners
		}
	}
	return all
}

// stop accepts no more requests and waits for those in flight until ctx ends.
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

// readiness is the document of /readyz.
type readiness struct {
	Ready bool `json:"ready"`
	// Checks holds "ok" or the reason of each check.
	Checks map[string]string `json:"checks"`
}

func (s *telemetry) answerReady(w http.ResponseWriter, r *http.Request) {
	answer := readiness{Ready: true, Checks: make(map[string]string, len(s.checks))}
	ctx, cancel := context.WithTimeout(r.Context(), checkBound)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, check := range s.checks {
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
	answer := make(map[string]any, len(s.status))
	for name, document := range s.status {
		var part any
		err := safely(func() (err error) { part, err = document(r.Context()); return err })
		if err != nil {
			part = map[string]string{"error": err.Error()}
		}
		answer[name] = part
	}
	s.writeJSON(w, http.StatusOK, answer)
}

// safely converts a panic of a check to an error.
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

// maxAnswer limits a response, in bytes.
const maxAnswer = 16 << 20

// Ask queries a JSON document, such as /status or /readyz, at a server's
// --metrics-address or status socket. A failed /readyz is not an error.
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
