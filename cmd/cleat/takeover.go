package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/internal/lease"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/takeover"
)

// coverageFlags say which backends there are, and how to reach them.
type coverageFlags struct {
	file string
	tls  mutualtls.Files
}

func (f *coverageFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "coverage", "", "YAML file that says which backend fences the volumes of which driver")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "certificate of this client, a PEM file")
	fs.StringVar(&f.tls.Key, "tls-key", "", "private key of the certificate, a PEM file that only its owner can read")
	fs.StringVar(&f.tls.CA, "tls-ca", "", "CA certificate that verifies the backends, a PEM file")
}

func (f *coverageFlags) read() (takeover.Coverage, error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return takeover.Coverage{}, fmt.Errorf("--coverage: %w", err)
	}
	c, err := takeover.ParseCoverage(text)
	if err != nil {
		return c, fmt.Errorf("--coverage %s: %w", f.file, err)
	}
	return c, nil
}

// takeoverServer is cleat takeover.
type takeoverServer struct {
	server.Server
	coverageFlags
	namespace, lease, kubeconfig string
	leaseDuration                time.Duration
}

func newTakeoverCommand() *cobra.Command {
	c := serving(&cobra.Command{
		Use:   "takeover",
		Short: "Fence the storage of lost nodes, and let their pods start elsewhere",
		Long: `Watches StorageFenceRemediations, which NodeHealthCheck of Medik8s or an administrator
creates for a node. It cordons the node, writes down its volumes and the addresses of
its clients, fences these at the storage, and reads the fences back. Only when all are
proved to be in force it sets the taint node.kubernetes.io/out-of-service and deletes
the node's pods, so that they start elsewhere. Anything that it does not know stops it,
with a condition that says what.

The fences stay until the same machine has another boot id, or an administrator
confirms that it is off (cleat takeover release). Nothing but the status of the
object and the storage has state: the process can be killed at any point. Several
replicas elect one.

--coverage says which fence service of cleat, or which NetworkFenceClass of CSI-Addons,
fences the volumes of which driver; other drivers block a takeover. docs/takeover.md has
the file.`,
		Example: `  cleat takeover --coverage /etc/cleat/takeover/coverage.yaml --tls-cert a.pem --tls-key a.key --tls-ca ca.pem
  cleat takeover start node-7
  kubectl -n cleat-system exec deploy/cleat-takeover -- cleat takeover show node-7
  cleat takeover release node-7 --off`,
		Args: noArgs,
	}, &takeoverServer{})
	c.AddCommand(newTakeoverStartCommand(), newTakeoverShowCommand(), newTakeoverReleaseCommand())
	return c
}

const defaultTakeoverNamespace = "cleat-system"

func (s *takeoverServer) addFlags(fs *pflag.FlagSet) {
	s.coverageFlags.addFlags(fs)
	fs.StringVar(&s.namespace, "namespace", defaultTakeoverNamespace, "namespace of the remediations; those of others are ignored")
	fs.StringVar(&s.lease, "lease", "cleat-takeover", "Lease in the namespace by which replicas elect one")
	fs.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: in-cluster configuration")
	fs.DurationVar(&s.leaseDuration, "lease-duration", 15*time.Second, "how long a lost leader keeps the other replicas waiting, in whole seconds")
	s.AddFlags(fs, server.Defaults{})
}

// Complete implements server.Program.
func (s *takeoverServer) Complete() error {
	if s.file == "" {
		return fmt.Errorf("--coverage is required: it says what fences the volumes of each driver")
	}
	return lease.CheckDuration(s.leaseDuration)
}

// Assemble implements server.Program.
func (s *takeoverServer) Assemble(context.Context) error {
	access, err := kubeconfig.Load(s.kubeconfig, "cleat-takeover/"+release)
	if err != nil {
		return err
	}
	access.QPS, access.Burst = 100, 200 // a pass reads a dozen objects, and many nodes can be lost at once
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	coverage, err := s.read()
	if err != nil {
		return err
	}
	backends, closeAll, err := openBackends(client, coverage.Backends, s.tls)
	if err != nil {
		return err
	}
	s.OnClose(closeAll)
	host, err := os.Hostname() // the pod's name
	if err != nil {
		return err
	}
	controller, err := takeover.New(takeover.Config{
		Client: client, Namespace: s.namespace, Lease: s.lease, Identity: host + "_" + rand.Text(),
		LeaseDuration: s.leaseDuration, Coverage: coverage, Backends: backends, Logger: s.Logger, Metrics: s.Metrics,
	})
	if err != nil {
		return err
	}
	s.Check("lease", controller.Check)
	s.AddTelemetry()
	s.Add(server.Part{Name: "takeover", Run: controller.Run})
	return nil
}
