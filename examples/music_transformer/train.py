"""Train a Music Transformer on a folder of pieces, with a loop of our own around train_on_batch."""

import argparse
import datetime
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from data import VOCABULARY, Data
from model import CustomSchedule, MusicTransformerDecoder, loss_of

here = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser()
parser.add_argument("--data_path", default=os.path.join(here, "pieces"), help="folder of .npy pieces")
parser.add_argument("--save_path", default=None, help="folder for the weights")
parser.add_argument("--log_dir", default=None, help="folder for the summaries")
parser.add_argument("--batch_size", default=2, type=int)
parser.add_argument("--max_seq", default=64, type=int)
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("--layers", default=2, type=int)
parser.add_argument("--width", default=64, type=int)
args = parser.parse_args()
batch_size, max_seq, epochs = args.batch_size, args.max_seq, args.epochs

dataset = Data(args.data_path)
print(dataset)

mt = MusicTransformerDecoder(args.width, 4, args.layers, VOCABULARY, max_seq, dropout=0.2)
opt = keras.optimizers.Adam(CustomSchedule(args.width, 400), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
mt.compile(optimizer=opt, loss=loss_of, metrics=["accuracy"])

log_dir = args.log_dir or os.path.join("music_logs", datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
train_summary_writer = tf.summary.create_file_writer(os.path.join(log_dir, "train"))
eval_summary_writer = tf.summary.create_file_writer(os.path.join(log_dir, "eval"))

idx = 0
for e in range(epochs):
    mt.reset_metrics()
    for b in range(len(dataset.files) // batch_size):
        try:
            batch_x, batch_y = dataset.slide_seq2seq_batch(batch_size, max_seq)
        except:
            continue
        result_metrics = mt.train_on_batch(batch_x, batch_y)
        print(f"{e}/{b} Loss {result_metrics[0]:.6f} Accuracy {result_metrics[1]:.6f}", flush=True)

        if b % 100 == 0:
            eval_x, eval_y = dataset.slide_seq2seq_batch(batch_size, max_seq, "eval")
            eval_result_metrics = mt.evaluate(eval_x, eval_y, verbose=0)
            if args.save_path:
                os.makedirs(args.save_path, exist_ok=True)
                mt.save_weights(os.path.join(args.save_path, "music.weights.h5"))
            with train_summary_writer.as_default():
                if b == 0:
                    tf.summary.histogram("target_analysis", batch_y, step=e)
                    tf.summary.histogram("source_analysis", batch_x, step=e)
                tf.summary.scalar("loss", result_metrics[0], step=idx)
                tf.summary.scalar("accuracy", result_metrics[1], step=idx)
            with eval_summary_writer.as_default():
                tf.summary.scalar("loss", eval_result_metrics[0], step=idx)
                tf.summary.scalar("accuracy", eval_result_metrics[1], step=idx)
            idx += 1
            print(f"{e}/{b} Eval >>>> Loss {eval_result_metrics[0]:.6f} Accuracy {eval_result_metrics[1]:.6f}", flush=True)

weights = b"".join(variable.numpy().tobytes() for variable in mt.variables + opt.variables)
print("summaries", idx, "weights", hashlib.sha256(weights).hexdigest())
