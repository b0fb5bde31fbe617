package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/placement"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/internal/server"
)

// placementServer is cleat csi placement.
type placementServer struct {
	server.Server
	driver, kubeconfig string
	controller         *placement.Controller
}

func newPlacementCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "placement",
		Short: "Place restores and clones on the node of their source",
		Long: `Watches claims with a data source (a snapshot or another claim) whose class waits for
the first consumer. When a pod that uses such a claim waits for a node, it selects the
node that has the source, which the scheduler does not know: with engine local the
volume can be created there only.

One instance serves all nodes of a driver. It keeps no state, and instances that overlap
do no harm. Events on the claim say which node was selected, or why it cannot be.`,
		Example: "  cleat csi placement --driver-name csi.cleat.dev --kubeconfig /etc/kubernetes/admin.conf",
		Args:    noArgs,
	}, &placementServer{})
}

func (s *placementServer) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.driver, "driver-name", csi.DefaultName, "driver whose claims are placed")
	fs.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: in-cluster configuration")
	s.AddFlags(fs, server.Defaults{})
}

// Complete implements server.Program.
func (s *placementServer) Complete() error { return csi.CheckName(s.driver) }

// Assemble implements server.Program.
func (s *placementServer) Assemble(context.Context) error {
	access, err := kubeconfig.Load(s.kubeconfig, "cleat-csi-placement/"+release)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	c := placement.Config{Client: client, Driver: s.driver, Logger: s.Logger, Metrics: s.Metrics}
	if s.controller, err = placement.New(c); err != nil {
		return err
	}
	s.Check("placement", s.controller.Check)
	s.AddTelemetry()
	s.Add(server.Part{Name: "placement", Run: s.controller.Run})
	return nil
}
