// Package apiserver runs an unmodified API server with etcd, alone and in a
// network namespace of its own, for tests of what writes objects. Nothing acts on
// the objects: tests that need controllers use package cluster.
package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleatproject/cleat/test/kubernetes/programs"
	"github.com/cleatproject/cleat/test/testkit"
)

// programsVariable passes the directory of the programs into the namespace, which
// does not reach the modules' proxy.
const programsVariable = "CLEAT_TEST_APISERVER"

// Isolate runs this test binary again in a network namespace, as
// testkit.RerunInNetNS, after it has built the API server and more programs
// (package programs).
func Isolate(ctx context.Context, more ...string) (code int, isInside bool) {
	if dir := os.Getenv(programsVariable); dir != "" {
		return testkit.RerunInNetNS()
	}
	set, err := programs.Build(ctx, os.Stderr, append(more, "kube-apiserver")...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		return 1, false
	}
	return testkit.RerunInNetNS(programsVariable + "=" + set.Dir)
}

// Program returns the path of a program that Isolate has built.
func Program(name string) string { return filepath.Join(os.Getenv(programsVariable), name) }

// Server is a running API server.
type Server struct {
	Dir          string
	etcd, server *testkit.Process
}

const (
	address  = "127.0.0.1:6443"
	adminKey = "admin-token"
)

// Start starts etcd and the API server and returns when it is ready. accounts are
// users beside the administrator, each a name such as
// system:serviceaccount:NAMESPACE:NAME, with no rights.
func Start(ctx context.Context, dir string, accounts ...string) (_ *Server, err error) {
	s := &Server{Dir: dir}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	if err := s.writeKeys(accounts); err != nil {
		return nil, err
	}
	s.etcd, err = launch("/usr/bin/etcd", "--data-dir", s.path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380")
	if err != nil {
		return nil, err
	}
	return s, s.Serve(ctx)
}

// Serve starts the API server, also after Halt, and returns when it is ready.
func (s *Server) Serve(ctx context.Context) (err error) {
	s.server, err = launch(Program("kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--secure-port=6443", "--cert-dir="+s.path("certs"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+s.path("accounts.pub"),
		"--service-account-signing-key-file="+s.path("accounts.key"), "--token-auth-file="+s.path("tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		// Its controller does not run: pods would be refused.
		"--disable-admission-plugins=ServiceAccount")
	if err != nil {
		return err
	}
	return s.server.Until(func() error {
		client, err := kubernetes.NewForConfig(s.Config(""))
		if err != nil {
			return err
		}
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// Halt ends the API server, and not etcd, which has the objects.
func (s *Server) Halt() { s.server.Kill() }

// Signal sends a signal to the API server, such as SIGSTOP: it accepts
// connections, and does not answer.
func (s *Server) Signal(signal os.Signal) error { return s.server.Signal(signal) }

// Stop ends both programs.
func (s *Server) Stop() {
	for _, p := range []*testkit.Process{s.server, s.etcd} {
		if p != nil {
			p.Kill()
		}
	}
}

// Config returns how an account, "" the administrator, reaches the server.
func (s *Server) Config(account string) *rest.Config {
	token := adminKey
	if account != "" {
		token = tokenOf(account)
	}
	return &rest.Config{
		Host: "https://" + address, BearerToken: token, QPS: 1000, Burst: 2000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("certs/apiserver.crt")}, WarningHandler: rest.NoWarnings{},
	}
}

// Client returns a client of an account.
func (s *Server) Client(account string) (dynamic.Interface, error) {
	return dynamic.NewForConfig(s.Config(account))
}

// Kubeconfig writes a kubeconfig of an account and returns its path. A process that
// reads it meanwhile has the whole file of this or of an earlier call.
func (s *Server) Kubeconfig(account string) (string, error) {
	path := s.path("kubeconfig-" + strings.ReplaceAll(account, ":", "-"))
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%s", certificate-authority: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {token: %q}}]
`, address, s.path("certs/apiserver.crt"), s.Config(account).BearerToken)
	unfinished, err := os.CreateTemp(s.Dir, "kubeconfig")
	if err != nil {
		return "", err
	}
	_, err = unfinished.WriteString(text)
	if err = errors.Join(err, unfinished.Close()); err != nil {
		return "", err
	}
	return path, os.Rename(unfinished.Name(), path)
}

func tokenOf(account string) string { return strings.ReplaceAll(account, ":", "-") + "-token" }

func (s *Server) path(name string) string { return filepath.Join(s.Dir, name) }

func launch(program string, args ...string) (*testkit.Process, error) {
	p, err := testkit.Launch(exec.Command(program, args...))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

func (s *Server) writeKeys(accounts []string) error {
	tokens := adminKey + `,admin,0,"system:masters"` + "\n"
	for i, a := range accounts {
		tokens += fmt.Sprintf("%s,%s,%d\n", tokenOf(a), a, i+1)
	}
	if err := os.WriteFile(s.path("tokens.csv"), []byte(tokens), 0o600); err != nil {
		return err
	}
	return WriteAccountKeys(s.Dir)
}

// WriteAccountKeys writes the key pair for tokens of service accounts into a
// directory: accounts.key and accounts.pub.
func WriteAccountKeys(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "accounts.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "accounts.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600)
}
