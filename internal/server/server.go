// Package server is the common part of all servers: settings, log, metrics,
// status, sockets, gRPC with interceptors, and the start and stop order of
// parts.
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
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// StopBound for all parts is below the default grace period of a pod, 30 s.
const StopBound = 25 * time.Second

// Server is embedded by each server. AddFlags declares its settings; Execute
// reads them and runs the parts added by Program.Assemble.
type Server struct {
	// Settings.
	Endpoint    string // unix:///run/x.sock or /run/x.sock
	SocketGroup string // besides root, for Endpoint
	StateDir    string
	AllowUIDs   []uint // besides root; see AddAllowUIDs
	LogFormat   string
	LogLevel    string

	// StatusSocket serves the same as --metrics-address to root. By default it is
	// StatusName in the state directory. Its name is fixed: cleat status finds it
	// by the directories that the process has open.
	StatusSocket string

	Out, Logs io.Writer            // of the command; set before Program.Complete
	Logger    *slog.Logger         // set before Program.Assemble
	Metrics   *prometheus.Registry // likewise
	*telemetry

	config         string
	metricsAddress string
	flags          *pflag.FlagSet
	allowFlag      string // of AllowUIDs
	calls          *callMetrics
	parts          []Part
	closers        []func(context.Context) error
}

// StatusName is the name of a server's status socket.
const StatusName = "status.sock"

// Defaults of optional flags, which are not declared if the default is empty.
type Defaults struct {
	Endpoint    string
	SocketGroup bool
	StateDir    string
	Env         map[string]string // additional variables of flags
}

// AddFlags declares the shared flags. Call it after the server's own: it adds
// environment variables to the help of all flags.
func (s *Server) AddFlags(fs *pflag.FlagSet, d Defaults) {
	s.flags = fs
	if d.Endpoint != "" {
		fs.StringVar(&s.Endpoint, "endpoint", d.Endpoint, "UNIX socket to serve, in its own directory, at most 107 bytes")
	}
	if d.SocketGroup {
		fs.StringVar(&s.SocketGroup, "socket-group", "", "group (name or ID) that is allowed to use the socket besides root; trust its members like root")
	}
	if d.StateDir != "" {
		fs.StringVar(&s.StateDir, "state-dir", d.StateDir, "state directory of this process, on a disk that survives a reboot")
	}
	fs.StringVar(&s.config, cli.ConfigFlag, "", "YAML configuration file with flag names as keys")
	fs.StringVar(&s.metricsAddress, "metrics-address", "", "host:port or socket path that serves /metrics, /healthz, /readyz and /status; empty: disabled")
	fs.StringVar(&s.LogFormat, "log-format", "json", "log format: text or json")
	fs.StringVar(&s.LogLevel, "log-level", "info", "log level: debug (with requests, without secrets), info, warn or error")
	cli.Enumerate(fs, "log-format", logFormats()...)
	cli.Enumerate(fs, "log-level", logLevels()...)
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

// bind reads the environment and the file.
func (s *Server) bind() error {
	if !s.flags.Changed(cli.ConfigFlag) {
		s.config = os.Getenv(cli.EnvName(cli.ConfigFlag))
	}
	if err := cli.Bind(s.flags, cli.Sources{File: s.config, LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	for _, uid := range s.AllowUIDs {
		if uid == unixsock.OverflowUID || uid >= math.MaxUint32 {
			return fmt.Errorf("--%s %d is the overflow user ID, shared by all users of other user namespaces", s.allowFlag, uid)
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

// IsSet reports whether a flag was set, also in the environment or the file.
func (s *Server) IsSet(flag string) bool { return s.flags.Changed(flag) }

// Program is the specific part of a server.
type Program interface {
	// Complete derives and validates settings, without side effects.
	Complete() error
	// Assemble adds the parts in their start order.
	Assemble(ctx context.Context) error
}

// Execute reads the settings and runs the program until a signal, a failure or
// the end of all parts.
func (s *Server) Execute(ctx context.Context, p Program, b Build, out, logs io.Writer) error {
	s.Out, s.Logs = out, logs
	if err := s.bind(); err != nil {
		return err
	}
	if err := p.Complete(); err != nil {
		return err
	}
	if s.StatusSocket == "" && s.StateDir != "" {
		dir, err := filepath.Abs(s.StateDir)
		if err != nil {
			return fmt.Errorf("--state-dir: %w", err)
		}
		s.StatusSocket = filepath.Join(dir, StatusName)
	}
	if err := checkOpenFiles(); err != nil {
		return err
	}
	var err error
	if s.Logger, err = NewLogger(s.Logs, s.LogFormat, s.LogLevel); err != nil {
		return err
	}
	if logs == os.Stderr { // the process is this server
		logGRPC(s.Logger)
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

// minOpenFiles is for a hundred calls at a time, the most of a sidecar, with a
// connection and a file each, and for sockets, stores and directories.
const minOpenFiles = 256

// checkOpenFiles refuses a limit with which calls would fail under load only.
// The Go runtime has raised the soft limit to the hard one.
func checkOpenFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < minOpenFiles {
		return fmt.Errorf("the limit of open files (RLIMIT_NOFILE, hard limit) is %d, at least %d are needed: raise it with LimitNOFILE= of systemd, or in the container runtime", limit.Cur, minOpenFiles)
	}
	return nil
}

// Add adds a part; parts start in this order and stop in reverse.
func (s *Server) Add(p Part) { s.parts = append(s.parts, p) }

// AddState adds the part that opens state, which is closed after all other
// parts, or when open fails: see OnClose.
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

// OnClose registers a close function; they are called in reverse order.
func (s *Server) OnClose(closer func(context.Context) error) { s.closers = append(s.closers, closer) }

// Close calls the functions of OnClose. Only a program without parts calls it.
func (s *Server) Close(ctx context.Context) error {
	var all error
	for i := len(s.closers) - 1; i >= 0; i-- {
		all = errors.Join(all, s.closers[i](ctx))
	}
	return all
}

// OpenStore opens a file in the state directory, which it creates.
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

// AddTelemetry serves /metrics, /healthz, /readyz and /status at
// --metrics-address.
func (s *Server) AddTelemetry() {
	s.Add(Part{
		Name: "telemetry",
		Prepare: func(ctx context.Context) error {
			if metrics, isSocket, _ := socketPath(s.metricsAddress); s.StatusSocket != "" && !(isSocket && metrics == s.StatusSocket) {
				if err := s.listenStatus(ctx, s.StatusSocket); err != nil { // optional
					s.Logger.Warn("status socket unavailable", "socket", s.StatusSocket, "err", err)
				}
			}
			return s.listen(ctx, s.metricsAddress)
		},
		Run:  s.serve,
		Stop: s.stop,
	})
}
