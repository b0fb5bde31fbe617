package rbd

import (
	"context"

	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephclient"
	"github.com/cleatproject/cleat/volume/access"
)

// spec returns how the image of a target is mapped.
func (a *Attacher) spec(ctx context.Context, l access.RBD, t node.Target) (krbd.Spec, error) {
	client, cluster, err := cephclient.Config{Clusters: a.config.Clusters, Credentials: a.config.Credentials}.Client(ctx, l.Ceph, t.Secrets)
	spec := krbd.Spec{Client: client, Owner: a.owner(l, t.Volume), Pool: l.Pool, Namespace: l.Namespace, Image: l.Image}
	if spec.Namespace == "" {
		spec.Namespace = cluster.RBD.RadosNamespace
	}
	return spec, err
}
