package rbd

import (
	"context"

	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/node/cephclient"
	"github.com/cleatproject/cleat/volume/access"
)

// spec returns how the image of a locator is mapped.
func (a *Attacher) spec(ctx context.Context, l access.RBD, secrets map[string]string) (krbd.Spec, error) {
	client, cluster, err := cephclient.Config{Clusters: a.config.Clusters, Credentials: a.config.Credentials}.Client(ctx, l.Ceph, secrets)
	spec := krbd.Spec{Client: client, Owner: a.owner(l), Pool: l.Pool, Namespace: l.Namespace, Image: l.Image}
	if spec.Namespace == "" {
		spec.Namespace = cluster.RBD.RadosNamespace
	}
	return spec, err
}
