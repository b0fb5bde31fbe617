package workload

// A reboot removes mounts and devices, but not the node's records. An
// orchestrator then either stages and publishes again, at the same paths, or
// unpublishes and unstages.

// rebooted updates the model after a reboot.
func (w *worker) rebooted() {
	for _, d := range w.disks {
		staging := w.open != nil && w.open.staging == d.id
		publishing := w.open != nil && w.open.publishing == d.id
		d.lostStage = d.lostStage || d.staged || staging
		d.lostPublish = d.lostPublish || d.published || publishing
		d.staged, d.published, d.readOnly = false, false, false
		d.data.powerLost()
	}
	for _, d := range w.inline {
		d.lostPublish = d.lostPublish || d.published
		d.published = false
		d.data.powerLost()
	}
	if w.open != nil && w.open.recopy != nil {
		w.open.recopy()
	}
	if w.open != nil && w.open.mounted {
		w.open = nil
	}
}

// recoverLost restores or undoes one lost stage or publish; done: none is lost.
func (w *worker) recoverLost() (done bool, err error) {
	for _, d := range w.inline {
		if d.lostPublish {
			return false, w.recoverInline(d)
		}
	}
	for _, d := range w.disks {
		switch again := w.rand.IntN(3) > 0; {
		case !d.lostStage && !d.lostPublish:
		case again && !d.staged:
			return false, w.stage(d)
		case again && d.lostPublish:
			if err := w.publish(d); err != nil {
				return false, err
			}
			return false, w.read(d)
		case d.lostPublish:
			return false, w.unpublish(d)
		default:
			return false, w.unstage(d)
		}
	}
	return true, nil
}

func (w *worker) recoverInline(d *disk) error {
	if w.rand.IntN(2) == 0 {
		return w.unpublishInlineDisk(d)
	}
	if err := w.publishInlineDisk(d); err != nil {
		return err
	}
	return w.read(d)
}
