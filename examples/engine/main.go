// Command acme-csi is a CSI driver whose volumes are files in a directory that all nodes
// have mounted, such as one of NFS. It is the program of docs/vendor.md.
package main

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

func main() { driver.Main(program()) }

func program() driver.Program {
	var share string
	state := driver.StateFlags{Prefix: "acme-"}
	return driver.Program{
		Name: "acme-csi", Version: "0.1.0", DriverName: "csi.acme.example",
		Engines: []driver.Engine{{
			Name: "acme",
			Flags: func(fs *pflag.FlagSet) {
				fs.StringVar(&share, "share", "", "directory of the volumes, mounted at the same path on all nodes")
				state.AddFlags(fs)
			},
			Complete: func(p *driver.Process) error {
				if share == "" {
					return errors.New("--share is missing: set the directory of the volumes")
				}
				p.Deployment.MultiNode, p.Deployment.ControllerPublish = true, true
				return state.Check()
			},
			// Neither snapshots nor clones, ...; and no Fences: a directory does not know who
			// writes in it.
			Abilities: func() csi.Abilities { return csi.Abilities{} },
			Describe:  func() string { return share },
			Open: func(ctx context.Context, p *driver.Process) (volume.Backend, error) {
				s, err := p.OpenState(ctx, &state)
				if err != nil {
					return volume.Backend{}, err
				}
				if _, err := p.UseState(ctx, s); err != nil { // grants of nodes
					return volume.Backend{}, err
				}
				e, err := open(ctx, share, s)
				return backend(e), err
			},
			Node: func(_ context.Context, _ *driver.Process, c *node.Config) error {
				c.Private = append(c.Private, share)
				c.Attachers = map[string]node.Attacher{"file": &attacher{share: share}}
				return nil
			},
		}},
	}
}

func backend(e *engine) volume.Backend {
	return volume.Backend{Engine: e, MultiNode: true, FormatOnNode: true}
}
