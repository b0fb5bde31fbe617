package workload

// A reboot takes mounts and devices away and leaves the records of the node
// behind. An orchestrator then either makes things again, at the same paths, or
// takes back what it finds that it had made before.

// rebooted brings the model in line with a machine that was down.
func (w *worker) rebooted() {
	for _, d := range w.disks {
		staging := w.open != nil && w.open.staging == d.id
		publishing := w.open != nil && w.open.publishing == d.id
		d.lostStage = d.lostStage || d.staged || staging
		d.lostPublish = d.lostPublish || d.published || publishing
		d.staged, d.published, d.readOnly = false, false, false
		d.data.cutOff()
	}
	for _, d := range w.inline {
		d.lostPublish = d.lostPublish || d.published
		d.published = false
		d.data.cutOff()
	}
	if w.open != nil && w.open.recopy != nil {
		w.open.recopy()
	}
	if w.open != nil && w.open.mounted {
		w.open = nil
	}
}

// mend makes one step towards a worker with nothing lost; done: it is one.
func (w *worker) mend() (done bool, err error) {
	for _, d := range w.inline {
		if d.lostPublish {
			return false, w.mendInline(d)
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

func (w *worker) mendInline(d *disk) error {
	if w.rand.IntN(2) == 0 {
		return w.takeInline(d)
	}
	if err := w.putInline(d); err != nil {
		return err
	}
	return w.read(d)
}
