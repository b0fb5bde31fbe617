// Package server is what all servers of cleat have in common: settings, log,
// metrics, status, sockets, gRPC with its interceptors, and the order in which
// parts start and stop. It knows no contract.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// StopBound is for stopping all parts. A pod has 30 s by default.
const StopBound = 25 * time.Second

// Server is embedded by each server of cleat. AddFlags declares its settings;
// Execute reads them and runs what Program.Assemble adds.
type Server struct {
	// Settings of the command line, the environment or the file.
	Endpoint    string // UNIX socket, as unix:///run/x.sock or /run/x.sock
	SocketGroup string // may use Endpoint besides root
	StateDir    string
	AllowUIDs   []uint // besides root; see AddAllowUIDs
	LogFormat   string
	LogLevel    string

	// StatusSocket, if set, serves root the same as --metrics-address.
	StatusSocket string

	Out, Logs io.Writer            // of the command; set before Program.Complete
	Logger    *slog.Logger         // set before Program.Assemble
	Metrics   *prometheus.Registry // likewise
	*telemetry

	config         string
	metricsAddress string
	flags          *pflag.FlagSet
	allowFlag      string // name of the flag for AllowUIDs
	calls          *callMetrics
	parts          []Part
	closers        []func(context.Context) error
}

// Defaults are those of flags that not every server has. A flag whose default
// is empty is not declared.
type Defaults struct {
	Endpoint    string
	SocketGroup bool // declare --socket-group
	StateDir    string
	Env         map[string]string // environment variables of flags besides CLEAT_...
}

// AddFlags declares the flags that servers share. Call it after the server's
// own flags: it adds the environment variables to the help of all.
func (s *Server) AddFlags(fs *pflag.FlagSet, d Defaults) {
	s.flags = fs
	if d.Endpoint != "" {
		fs.StringVar(&s.Endpoint, "endpoint", d.Endpoint, "UNIX socket to serve, in a directory of its own")
	}
	if d.SocketGroup {
		fs.StringVar(&s.SocketGroup, "socket-group", "", "group (name or id) that may use the socket besides root")
	}
	if d.StateDir != "" {
		fs.StringVar(&s.StateDir, "state-dir", d.StateDir, "directory for what this process must remember")
	}
	fs.StringVar(&s.config, cli.ConfigFlag, "", "YAML file with any of these settings")
	fs.StringVar(&s.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&s.LogFormat, "log-format", "json", "text or json")
	fs.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error; debug shows requests without their secrets")
	for flag, name := range d.Env {
		if err := cli.EnvAlias(fs, flag, name); err != nil {
			panic(err)
		}
	}
	cli.DescribeEnv(fs)
}

// AddAllowUIDs declares the flag for AllowUIDs.
func (s *Server) AddAllowUIDs(fs *pflag.FlagSet, name, usage string) {
	s.allowFlag = name
	fs.UintSliceVar(&s.AllowUIDs, name, nil, usage)
}

// bind sets the flags that the command line did not: by the environment, else by
// the file.
func (s *Server) bind() error {
	if !s.flags.Changed(cli.ConfigFlag) {
		s.config = os.Getenv(cli.EnvName(cli.ConfigFlag))
	}
	if err := cli.Bind(s.flags, cli.Sources{File: s.config, LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	for _, uid := range s.AllowUIDs {
		if uid == unixsock.OverflowUID || uid >= math.MaxUint32 {
			return fmt.Errorf("--%s %d: that is how users of other user namespaces look, any of them", s.allowFlag, uid)
		}
	}
	if s.flags.Lookup("endpoint") == nil {
		return nil
	}
	if _, err := unixsock.ParseEndpoint(s.Endpoint); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	return nil
}

// IsSet reports whether a flag was set in any way.
func (s *Server) IsSet(flag string) bool { return s.flags.Changed(flag) }

// Program is what differs between servers.
type Program interface {
	// Complete derives settings from others and refuses those that cannot work,
	// before anything is touched.
	Complete() error
	// Assemble adds the parts in the order in which they start.
	Assemble(ctx context.Context) error
}

// Execute reads the settings, assembles the program and runs it until a signal,
// a failure or the end of all parts.
func (s *Server) Execute(ctx context.Context, p Program, b Build, out, logs io.Writer) error {
	s.Out, s.Logs = out, logs
	if err := s.bind(); err != nil {
		return err
	}
	if err := p.Complete(); err != nil {
		return err
	}
	var err error
	if s.Logger, err = NewLogger(s.Logs, s.LogFormat, s.LogLevel); err != nil {
		return err
	}
	s.Metrics = newRegistry(b)
	s.telemetry = newTelemetry(s.Metrics, s.Logger)
	if s.calls, err = newCallMetrics(s.Metrics); err != nil {
		return err
	}
	if err := p.Assemble(ctx); err != nil {
		return err
	}
	return run(ctx, options{Logger: s.Logger, Bound: StopBound}, s.parts...)
}

// Add adds a part that starts after those added before it, and stops before them.
func (s *Server) Add(p Part) { s.parts = append(s.parts, p) }

// AddState adds the part that opens what other parts need. What it opens is
// closed after all of them have stopped, or when open fails: see OnClose.
func (s *Server) AddState(open func(context.Context) error) {
	s.Add(Part{
		Name: "state",
		Prepare: func(ctx context.Context) error {
			if err := open(ctx); err != nil {
				return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
			}
			return nil
		},
		Stop: s.Close,
	})
}

// OnClose registers the close function of something that was opened. They are
// called in reverse order.
func (s *Server) OnClose(closer func(context.Context) error) { s.closers = append(s.closers, closer) }

// Close calls what OnClose registered. Only a program without parts calls it
// itself.
func (s *Server) Close(ctx context.Context) error {
	var all error
	for i := len(s.closers) - 1; i >= 0; i-- {
		all = errors.Join(all, s.closers[i](ctx))
	}
	return all
}

// OpenStore opens a file of the state directory, which it creates.
func (s *Server) OpenStore(ctx context.Context, name string, o store.Options) (*store.Store, error) {
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	file, err := store.Open(ctx, filepath.Join(s.StateDir, name), o)
	if err != nil {
		return nil, err
	}
	s.OnClose(func(context.Context) error { return file.Close() })
	return file, nil
}

// AddTelemetry adds the part that serves /metrics, /healthz, /readyz and
// /status at --metrics-address.
func (s *Server) AddTelemetry() {
	s.Add(Part{
		Name: "telemetry",
		Prepare: func(ctx context.Context) error {
			if s.StatusSocket != "" {
				err := s.listenSocket(ctx, unixsock.Address{Path: s.StatusSocket, SharedDir: true, AnyLength: true})
				if err != nil { // nothing that is served depends on it
					s.Logger.Warn("the status socket cannot be served", "path", s.StatusSocket, "error", err)
				}
			}
			return s.listen(ctx, s.metricsAddress)
		},
		Run:  s.serve,
		Stop: s.stop,
	})
}
