package ceph

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/errs"
)

// errNoPool: an object is in no pool of the cluster.
var errNoPool = errors.New("the Ceph cluster has no pool of this number")

// poolOutside returns why an object is in no pool of the engine, from the output
// of `osd dump`. Precondition: the driver does not serve the pool. With errNoPool:
// NotFound, as the pool was deleted, or Precondition, as the cluster never had one
// of this number, and the object is in another cluster. Ceph counts pools up, and
// uses no number again.
func poolOutside(dump []byte, id int64, object, cluster string) error {
	var m struct {
		Max   *int64 `json:"pool_max"`
		Pools []struct {
			ID   int64  `json:"pool"`
			Name string `json:"pool_name"`
		} `json:"pools"`
	}
	if err := json.Unmarshal(dump, &m); err != nil {
		return fmt.Errorf("parse the answer to osd dump: %w", err)
	}
	if m.Max == nil {
		return fmt.Errorf("the answer to osd dump has no pool_max")
	}
	for _, p := range m.Pools {
		if p.ID == id {
			return errs.Errorf(errs.Precondition, "%s is in pool %s, which this driver does not serve; add --ceph-pool %s", object, p.Name, p.Name)
		}
	}
	if id > *m.Max {
		return errs.Errorf(errs.Precondition, "whether %s exists is not known: %w, %d, and never had one, as the last one of cluster %s is %d; check with which cluster it was created", object, errNoPool, id, cluster, *m.Max)
	}
	return errs.Errorf(errs.NotFound, "%s does not exist: its pool, number %d of Ceph cluster %s, was deleted (%w)", object, id, cluster, errNoPool)
}
