package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/test/testkit"
)

type program struct {
	Server
	size     int
	assemble func(ctx context.Context) error
}

func (p *program) Complete() error                    { return nil }
func (p *program) Assemble(ctx context.Context) error { return p.assemble(ctx) }

func TestOpenFiles(t *testing.T) {
	var before unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	defer func() { testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }()
	testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: minOpenFiles - 1, Max: before.Max}))
	p := &program{assemble: func(context.Context) error { t.Error("assembled"); return nil }}
	if err := p.execute(t); err == nil || !strings.Contains(err.Error(), "open files") || !strings.Contains(err.Error(), "is 255") {
		t.Errorf("with a limit of 255: %v", err)
	}
}

func (p *program) execute(t *testing.T, args ...string) error {
	t.Helper()
	fs := pflag.NewFlagSet("program", pflag.ContinueOnError)
	fs.IntVar(&p.size, "size", 1, "")
	p.AddAllowUIDs(fs, "allow-uid", "")
	p.AddFlags(fs, Defaults{Endpoint: "/run/x/x.sock", SocketGroup: true, StateDir: t.TempDir(), Env: map[string]string{"size": "SIZE"}})
	testkit.Must(t, fs.Parse(args))
	return p.Execute(t.Context(), p, Build{Version: "v1"}, io.Discard, io.Discard)
}

// A flag wins over the environment, and the environment over the file.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	testkit.Must(t, os.WriteFile(file, []byte("size: 2\n"), 0o600))
	for want, c := range []struct {
		env  map[string]string
		args []string
	}{
		1: {},
		2: {env: map[string]string{"CLEAT_CONFIG": file}},
		3: {env: map[string]string{"CLEAT_CONFIG": file, "SIZE": "3"}},
		4: {env: map[string]string{"CLEAT_SIZE": "4", "SIZE": "3"}},
		5: {env: map[string]string{"CLEAT_SIZE": "4"}, args: []string{"--config", file, "--size", "5"}},
	} {
		if want == 0 {
			continue
		}
		for _, name := range []string{"CLEAT_CONFIG", "CLEAT_SIZE", "SIZE"} {
			t.Setenv(name, c.env[name])
		}
		p := &program{assemble: func(context.Context) error { return nil }}
		if err := p.execute(t, c.args...); err != nil || p.size != want {
			t.Errorf("%v: size %d, %v; want %d", c, p.size, err, want)
		}
	}
}

func TestRefusedSettings(t *testing.T) {
	for _, c := range [][3]string{
		{"--endpoint", "x.sock", "--endpoint"}, {"--allow-uid", "65534", "--allow-uid"}, {"--allow-uid", "4294968296", "--allow-uid"},
		{"--log-level", "inof", "log level"}, {"--config", "/nowhere.yaml", "no such file"},
	} {
		p := &program{assemble: func(context.Context) error { t.Error("it is assembled"); return nil }}
		if err := p.execute(t, c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s %s: got %v", c[0], c[1], err)
		}
	}
}

// The state directory, which is created if missing, has a status socket; the
// metrics address can be the same.
func TestStatusSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "server")
	for _, metrics := range []string{"", "unix://" + filepath.Join(dir, StatusName)} {
		p := &program{}
		p.assemble = func(context.Context) error {
			p.AddTelemetry()
			p.Add(Part{Name: "client", Run: func(ctx context.Context) error {
				var ready readiness
				return errors.Join(Ask(ctx, filepath.Join(dir, StatusName), "/readyz", &ready), p.stop(ctx))
			}})
			return nil
		}
		if err := p.execute(t, "--state-dir", dir, "--metrics-address", metrics); err != nil {
			t.Errorf("--metrics-address %q: %v", metrics, err)
		}
	}
}

// State is closed in reverse order, also after a failed open.
func TestStateIsClosed(t *testing.T) {
	for name, failure := range map[string]error{"stopped": nil, "failed": errBroken} {
		var d diary
		p := &program{}
		p.assemble = func(context.Context) error {
			p.AddState(func(context.Context) error {
				for _, what := range []string{"a", "b"} {
					p.OnClose(func(context.Context) error { d.note("close-" + what); return nil })
				}
				return failure
			})
			p.AddTelemetry()
			p.Add(Part{Name: "work", Run: p.stop}) // ends the last part that serves
			return nil
		}
		if err := p.execute(t); !errors.Is(err, failure) {
			t.Errorf("%s: %v", name, err)
		}
		d.check(t, "close-b close-a")
	}
}

// Waiting calls are broken off at the stop; a service without a listener serves
// nothing.
func TestServiceBreaksOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s", "s.sock")
	running, broken := make(chan struct{}), make(chan struct{})
	answers := make(chan error, 1)
	p := &program{}
	p.assemble = func(context.Context) error {
		s := &service{answer: func(context.Context) error { close(running); <-broken; return errBusy }}
		v := Service{
			Name: "waits", GRPC: GRPCConfig{Code: table}, Listen: p.ListenEndpoint,
			Register:      func(r grpc.ServiceRegistrar) error { health.RegisterHealthServer(r, s); return nil },
			CancelWaiting: func(context.Context) error { close(broken); return nil }, breakOffAfter: time.Millisecond,
		}
		p.AddService(v)
		v.Name, v.Listen = "none", func(context.Context) (net.Listener, error) { return nil, nil }
		p.AddService(v)
		p.Add(Part{Name: "stops", Run: func(ctx context.Context) error {
			conn, err := rpcdial.Unix(path)
			if err != nil {
				return err
			}
			go func() {
				defer conn.Close()
				_, err := health.NewHealthClient(conn).Check(context.WithoutCancel(ctx), &health.HealthCheckRequest{})
				answers <- err
			}()
			<-running
			return errBroken
		}})
		return nil
	}
	if err := p.execute(t, "--endpoint", path); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
	if err := <-answers; status.Code(err) != codes.Aborted {
		t.Errorf("the call: %v", err)
	}
}
